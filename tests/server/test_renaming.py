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


def comes(sim, number, name=None):
    hello = Hello(protocol=1, facts=FACTS, caps=Caps(), state="idle", name=name)
    sim.happen(Connected(provider=number, hello=hello))
    sim.happen(Disconnected(provider=number))


def test_machines_of_one_name_are_told_apart_by_their_numbers():
    """Cloned machines have one host name: every event was about `vm`."""
    sim = Simulation()
    for _ in range(3):
        sim.enrol()
        comes(sim, len(sim.agents), "vm" if len(sim.agents) < 3 else "grace")
    assert "p2 is called vm #2 now" in [note.text for note in sim.notes]
    sim.restart()
    for number, called in ((1, "vm #1"), (2, "vm #2"), (3, "grace")):
        comes(sim, number)
        assert [note.text for note in sim.notes[-2:]] == [
            f"{called} is connected",
            f"{called} is away",
        ]
    assert {sim.world.called(number) for number in (1, 2)} == {"vm #1", "vm #2"}
    comes(sim, 2, "ada")
    assert sim.world.called(1) == "vm"
    comes(sim, 2, "vm")
    sim.steer_provider(1, "remove")
    assert "vm #1 was removed by" in sim.notes[-1].text
    assert sim.world.called(1) == "vm #1", "what it has trained is still shown"
    assert sim.world.called(2) == "vm", "nobody else has the name any more"
    sim.restart()
    assert sim.world.called(2) == "vm"
