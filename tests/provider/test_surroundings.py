"""What a script's Node is told by the environment."""

from pathlib import Path

import pytest

from ravnest.errors import NodeError
from ravnest.provider.surroundings import surroundings


def test_without_a_word_nothing_is_different():
    found = surroundings({})
    assert (found.routes, found.listen, found.tls, found.bandwidth_mbps) == (None,) * 4
    assert found.patience is None


def test_routes_certificates_and_limits_are_read():
    found = surroundings(
        {
            "RAVNEST_ROUTES": '{"provider-1:1": "127.0.0.1:9"}',
            "RAVNEST_LISTEN": "127.0.0.1:8",
            "RAVNEST_TLS": "tls",
            "RAVNEST_DEVICE_SHARE": "0.25",
            "RAVNEST_BANDWIDTH_MBPS": "2.5",
        }
    )
    assert found.routes == {"provider-1:1": "127.0.0.1:9"}
    assert found.listen == "127.0.0.1:8"
    assert found.tls is not None
    assert found.tls.key == Path("tls/key.pem")
    assert found.tls.names == "provider"
    assert (found.bandwidth_mbps, found.device_share) == (2.5, 0.25)
    assert found.patience is not None
    assert found.patience.resume_s > 60


@pytest.mark.parametrize(
    "variables", [{"RAVNEST_ROUTES": "nonsense"}, {"RAVNEST_BANDWIDTH_MBPS": "fast"}]
)
def test_what_cannot_be_understood_is_named(variables):
    with pytest.raises(NodeError, match=next(iter(variables.values()))):
        surroundings(variables)
