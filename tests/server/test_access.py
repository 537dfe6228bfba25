"""Tokens and credentials: each is good for what it was made for, and for no longer."""

import pytest

from ravnest.api.requests import NewToken
from ravnest.api.tokens import Credential, Token, digest_of
from ravnest.errors import TokenError
from ravnest.server.access import MAY, ONLOOKER, Access

PRINT = b"f" * 16


def access(records=(), credentials=None):
    return Access(PRINT, records, (credentials or {}).get)


@pytest.mark.parametrize("role", ["provider", "requester", "viewer", "operator"])
def test_a_token_is_its_role_and_nothing_else(role):
    gate = access()
    _, token = gate.make(NewToken(role=role, name="mine"), now=0)
    caller = gate.caller(str(token), now=1)
    assert (caller.kind, caller.name, caller.token) == (role, "mine", token.id)
    assert {right for right in MAY if caller.may(right)} == {
        right for right, kinds in MAY.items() if role in kinds
    }


def test_only_an_operator_operates_and_only_a_machine_works():
    assert MAY["operate"] == {"operator"}
    assert MAY["work"] == {"machine"}
    assert {right for right in MAY if ONLOOKER.may(right)} == {"ask", "look"}


def test_a_token_ends_at_its_hour():
    gate = access()
    _, token = gate.make(NewToken(role="viewer", name="v", hours=1), now=100)
    assert gate.caller(str(token), now=3699).kind == "viewer"
    with pytest.raises(TokenError, match="expired"):
        gate.caller(str(token), now=3700)


def test_a_revoked_token_is_refused_and_stays_so_after_a_restart():
    gate = access()
    _, token = gate.make(NewToken(role="viewer", name="v"), now=0)
    record = gate.revoke(token.id)
    for one in (gate, access([record])):
        with pytest.raises(TokenError, match="revoked"):
            one.caller(str(token), now=1)


def test_without_a_name_a_token_gets_one_that_nobody_has_had():
    gate = access()
    ann, token = gate.make(NewToken(role="requester"), now=0)
    gate.revoke(token.id)
    bob, _ = gate.make(NewToken(role="requester", hours=1), now=0)
    eve, _ = gate.make(NewToken(role="requester"), now=9000, taken={"requester-3"})
    assert [one.name for one in (ann, bob, eve)] == ["requester", "requester-2", "requester-4"]


def test_a_second_requester_of_a_name_is_refused_while_the_first_is_good():
    gate = access()
    _, token = gate.make(NewToken(role="requester", name="ann", hours=1), now=0)
    with pytest.raises(TokenError, match=f"{token.id}.*--name.*--replace"):
        gate.make(NewToken(role="requester", name="ann"), now=1)
    gate.make(NewToken(role="viewer", name="ann"), now=1)
    gate.make(NewToken(role="requester", name="ann"), now=4000)


@pytest.mark.parametrize("name", ["Ann", "ANN", "ann "])
def test_a_name_that_looks_the_same_is_the_same(name):
    gate = access()
    gate.make(NewToken(role="requester", name="ann"), now=0)
    with pytest.raises(TokenError, match="--replace"):
        gate.make(NewToken(role="requester", name=name), now=1)
    successor, _ = gate.make(NewToken(role="requester", name=name, replace=True), now=1)
    assert successor.name == "ann"  # whose jobs these are


def test_nobody_is_given_a_name_that_looks_like_anothers():
    gate = access()
    gate.make(NewToken(role="requester", name="Requester"), now=0)
    record, _ = gate.make(NewToken(role="requester"), now=0, taken=["REQUESTER-2"])
    assert record.name == "requester-3"


def test_a_successor_is_made_only_of_a_name():
    with pytest.raises(TokenError, match="--name"):
        access().make(NewToken(role="requester", replace=True), now=0)


def test_uses_run_out():
    gate = access()
    _, token = gate.make(NewToken(role="provider", name="p", uses=2), now=0)
    gate.spend(token.id, now=1)
    assert gate.caller(str(token), now=1).kind == "provider"
    gate.spend(token.id, now=1)
    with pytest.raises(TokenError, match="as often"):
        gate.caller(str(token), now=1)


def test_a_use_is_refused_when_none_is_left_or_the_token_ended_since_it_was_shown():
    gate = access()
    _, token = gate.make(NewToken(role="provider", name="p", uses=1, hours=1), now=0)
    gate.spend(token.id, now=1)
    with pytest.raises(TokenError, match="as often"):
        gate.spend(token.id, now=1)
    _, revoked = gate.make(NewToken(role="provider", name="p"), now=0)
    gate.revoke(revoked.id)
    with pytest.raises(TokenError, match="revoked"):
        gate.spend(revoked.id, now=1)
    gate.forget_expired(before=10_000)
    with pytest.raises(TokenError, match="expired"):
        gate.spend(token.id, now=10_000)


def test_uses_are_for_machines_that_enrol():
    with pytest.raises(TokenError, match="only provider tokens"):
        access().make(NewToken(role="viewer", name="v", uses=2), now=0)


def test_another_secret_another_role_or_another_servers_token_is_refused():
    gate = access()
    _, token = gate.make(NewToken(role="viewer", name="v"), now=0)
    forged = [
        Token("viewer", PRINT, token.id, "0" * 40),
        Token("operator", PRINT, token.id, token.secret),
        Token.make("operator", PRINT),
    ]
    for one in forged:
        with pytest.raises(TokenError, match="not one of this server"):
            gate.caller(str(one), now=1)


def test_what_is_stored_does_not_hold_the_secret():
    record, token = access().make(NewToken(role="viewer", name="v"), now=0)
    assert token.secret not in repr(record)
    assert record.digest == digest_of(token.secret)


def test_a_credential_is_one_machine():
    credential = Credential.make(7)
    gate = access(credentials={7: digest_of(credential.secret)})
    assert gate.caller(str(credential), now=0).provider == 7
    for other in (Credential(8, credential.secret), Credential.make(7)):
        with pytest.raises(TokenError, match="does not know"):
            gate.caller(str(other), now=0)


@pytest.mark.parametrize("text", ["", "rav1_", "rvc1_7_short", "Bearer", "rav1_" + "A" * 60])
def test_what_is_no_token_is_refused_without_being_repeated(text):
    with pytest.raises(TokenError) as caught:
        access().caller(text, now=0)
    assert text == "" or text not in str(caught.value).replace("rav1_ and", "")


def test_only_good_tokens_count_and_few_others_are_remembered(monkeypatch):
    monkeypatch.setattr("ravnest.server.access.MOST_TOKENS", 2)
    gate = access()
    made = [gate.make(NewToken(role="viewer"), now=moment)[1].id for moment in range(2)]
    with pytest.raises(TokenError, match="revoke some"):
        gate.make(NewToken(role="viewer"), now=2)
    for moment in range(2, 5):
        gate.revoke(made[-1])
        made.append(gate.make(NewToken(role="viewer"), now=moment)[1].id)
    assert gate.forget_most_ended(now=5) == [made[1]]
    assert [one.id for one in gate.shown()] == [made[0], *made[2:]]


def test_tokens_that_ended_long_ago_are_forgotten():
    gate = access()
    _, old = gate.make(NewToken(role="viewer", name="v", hours=1), now=0)
    _, new = gate.make(NewToken(role="viewer", name="v", hours=100), now=0)
    assert gate.forget_expired(before=5000) == [old.id]
    assert [shown.id for shown in gate.shown()] == [new.id]
