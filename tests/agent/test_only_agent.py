"""A folder of a provider has one agent."""

import pytest

from ravnest.agent.identity import only_agent
from ravnest.errors import RunDirError


def test_a_second_agent_in_a_folder_is_refused_also_for_another_server(tmp_path):
    home = tmp_path / "provider"
    with only_agent(home):
        with pytest.raises(RunDirError, match="--home DIR"), only_agent(home):
            pass
        with only_agent(tmp_path / "other"):
            pass
    with only_agent(home):
        pass
