"""A machine is called what its owner says, also if that comes later."""

from state_simulation import FACTS, Simulation

from ravnest.api.control import Hello
from ravnest.api.machine import Caps
from ravnest.server.state.events import Connected, Disconnected


def test_a_provider_is_called_what_its_owner_says_when_it_comes_back():
    sim = Simulation()
    sim.enrol()
    (number,) = sim.agents
    enrolled_as = sim.world.providers[number].name
    for said, called in ((None, enrolled_as), ("grace", "grace"), (None, "grace")):
        hello = Hello(protocol=1, facts=FACTS, caps=Caps(), state="idle", name=said)
        sim.happen(Connected(provider=number, hello=hello))
        sim.happen(Disconnected(provider=number))
        assert sim.world.providers[number].name == called
    sim.restart()
    assert sim.world.providers[number].name == "grace"
    told = [note.text for note in sim.notes if "is called" in note.text]
    assert told == [f"{enrolled_as} is called grace now"]
