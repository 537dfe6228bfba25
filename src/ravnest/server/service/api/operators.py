"""What operators ask: tokens for others, and to steer providers."""

import asyncio

from ravnest.api.limits import encode
from ravnest.api.requests import NewToken, ProviderAction, TokenMade, TokenShown
from ravnest.server.changes import Put, Remove
from ravnest.server.service.calls import Call, Endpoint
from ravnest.server.service.problems import Refusal
from ravnest.server.service.service import Service
from ravnest.server.state.events import ProviderSteered


class _Operators:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def make_token(self, call: Call) -> TokenMade:
        service, wanted = self._service, await call.body(NewToken)
        former = service.access.namesakes(wanted, service.clock()) if wanted.replace else []
        owners = {job.owner_name for job in service.world.jobs.values()}
        record, token = service.access.make(wanted, service.clock(), owners)
        records = [record, *(service.access.revoke(id) for id in former)]
        kept = [Put("token", one.id, encode(one)) for one in records]
        gone = service.access.forget_most_ended(service.clock())
        await service.core.keep([*kept, *(Remove("token", id) for id in gone)])
        return TokenMade(
            id=record.id, token=str(token), expires_at=record.expires_at, name=record.name
        )

    async def tokens(self, call: Call) -> list[TokenShown]:
        return self._service.access.shown()

    async def revoke(self, call: Call) -> None:
        providers = call.request.query_params.get("providers", "stay")
        if providers not in ("stay", "remove"):
            raise Refusal("invalid", f"providers is {providers[:40]!r}; expected stay or remove")
        try:
            record = self._service.access.revoke(call.path("token"))
        except KeyError:
            raise Refusal("not_found", "there is no token with this id") from None
        done = [self._service.core.keep([Put("token", record.id, encode(record))])]
        if providers == "remove":
            done += [
                self._service.core.happen(
                    ProviderSteered(provider=provider.id, action="remove", by=call.caller.name)
                )
                for provider in list(self._service.world.providers.values())
                if provider.token == record.id and not provider.removed
            ]
        await asyncio.gather(*done)

    async def steer(self, call: Call) -> None:
        wanted = await call.body(ProviderAction)
        id = int(call.path("provider"))
        # Not before the body has come: somebody else may have removed it meanwhile.
        known = self._service.world.providers.get(id)
        if known is None or known.removed:
            raise Refusal("not_found", f"there is no provider {id}")
        event = ProviderSteered(provider=id, action=wanted.action, by=call.caller.name)
        await self._service.core.happen(event)


def endpoints(service: Service) -> list[Endpoint]:
    here = _Operators(service)
    return [
        Endpoint(
            "POST",
            "/api/v1/tokens",
            "operate",
            here.make_token,
            "Make a token; shown once. Jobs belong to the name of a requester token",
            body=NewToken,
            answer=TokenMade,
        ),
        Endpoint(
            "GET",
            "/api/v1/tokens",
            "operate",
            here.tokens,
            "All tokens, without secrets",
            answer=list[TokenShown],
        ),
        Endpoint(
            "DELETE",
            "/api/v1/tokens/{token}",
            "operate",
            here.revoke,
            "Revoke a token",
            query={"providers": "remove: also all that have enrolled with it; else they stay"},
        ),
        Endpoint(
            "POST",
            "/api/v1/providers/{provider:number}/action",
            "operate",
            here.steer,
            "Pause, resume or remove a provider",
            body=ProviderAction,
        ),
    ]
