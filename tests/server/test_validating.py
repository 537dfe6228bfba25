"""A fusion becomes the result if held-out rows say so: by real files, in the state, over HTTP."""

import asyncio
import shutil

import msgspec
import pytest
import torch
from a_job import Net, make_job, submit, upload
from fake_work import train
from looking import job_is, until
from safetensors.torch import load_file, save_file
from servers import running_server
from test_jobs import assigned, pool

from ravnest.api.control import Steer
from ravnest.api.work import WorkEnd
from ravnest.plan import ProviderSpec
from ravnest.server.planjob import validating
from ravnest.server.planjob.__main__ import _done
from ravnest.server.planjob.outcome import MEMORY, ORDER, PlanOrder
from ravnest.server.planjob.validating import stage_not_finite
from ravnest.server.service.fused_files import put_in_place
from ravnest.server.service.partitions import link_held_out
from ravnest.server.state.fusing import judged, why_refused
from ravnest.server.state.records import Validation
from ravnest.stage.package import load_package, load_weights, save_trained

# ---- what the figures mean


@pytest.mark.parametrize(
    ("loss", "last", "untrained", "good"),
    [
        (1.0, None, 2.0, True),
        (3.9, None, 2.0, True),
        (4.1, None, 2.0, False),  # more than twice that of the untrained model
        (0.3, 0.2, 2.2, True),
        (1.1, 0.2, 2.2, True),  # overfitted, or stopped in the middle of an epoch
        (1.3, 0.2, 2.2, False),  # more than half of what was gained is lost
        (2.2, 0.2, 2.2, False),
        (-1.0, -2.0, 1.0, True),
        (0.1, -2.0, 1.0, False),
        (None, 0.2, 2.2, False),
        (None, None, 2.2, False),
        (None, None, None, True),  # it never was finite: nothing to judge by
        (9.0, None, None, True),
    ],
)
def test_a_fusion_may_be_worse_by_a_margin_and_no_more(loss, last, untrained, good):
    found = Validation(rows=100, loss=loss, last_loss=last, untrained_loss=untrained)
    assert (why_refused(found) == "") == good
    if not good:
        assert "100 held-out rows" in why_refused(found)
        assert "would be accepted" in why_refused(found)


def test_what_was_not_judged_is_kept_and_said():
    found = Validation(note="the job has no validation rows")
    assert why_refused(found) == ""
    assert judged(found) == "not validated: the job has no validation rows"
    figures = Validation(rows=2000, loss=0.21, last_loss=0.35, untrained_loss=2.3)
    assert judged(figures) == "a loss of 0.21 on 2,000 held-out rows (0.35 before, 2.3 untrained)"


# ---- by real files


class Scene:
    """A run of one provider, planned; its results can be made up and fused."""

    def __init__(self, folder, **job):
        self.spec, files = make_job(
            folder / "made", planning={"min_cluster_size": 1, "max_clusters": 1}, **job
        )
        self.job = folder / "job"
        self.run = self.job / "runs" / "1"
        self.run.mkdir(parents=True)
        shutil.copytree(folder / "made" / "model", self.job / "model")
        provider = ProviderSpec(
            id=1, address="provider-1:1", memory_bytes=1 << 30, bandwidth_mbps=1e2, gflops=50.0
        )
        model = str(self.job / "model")
        order = PlanOrder(
            task="plan", spec=self.spec, job="j", model=model, run=1, pool=(provider,)
        )
        (self.run / ORDER).write_bytes(msgspec.json.encode(order))
        outcome = _done(order, self.run)
        assert outcome.error == ""
        link_held_out(self.run, self.spec, files.__getitem__)
        self.data = (
            {
                name: torch.cat([load_file(files[s.files[n].sha256])[name] for s in shards])
                for n, name in enumerate(("x", "y"))
                for shards in [self.spec.validation.shards]
            }
            if self.spec.validation
            else {}
        )

    @property
    def result(self):
        path = self.job / "result" / "trained_state_dict.safetensors"
        return load_file(path) if path.is_file() else None

    def fuse(self, change):
        """What was brought back, by name, changed so."""
        results = self.run / "results"
        shutil.rmtree(results, ignore_errors=True)
        shutil.rmtree(self.run / "fusing", ignore_errors=True)
        (package,) = self.run.glob("node_data/cluster_*/provider-1:1")
        stage = load_package(package)
        weights = load_weights(package / "weights.safetensors", stage.graph)
        save_trained(stage, {n: change(n, t.clone()) for n, t in weights.items()}, save_id="s")
        (results / "1").mkdir(parents=True)
        for file in package.glob("trained*"):
            shutil.copy(file, results / "1" / file.name)
        (self.run / "fusing").mkdir()
        order = PlanOrder(
            task="fuse",
            job="j",
            run=1,
            model=str(self.run / "node_data"),
            results=str(results),
            output=str(self.job / "result"),
        )
        outcome = _done(order, self.run / "fusing")
        return put_in_place(self.run / "fusing", order, outcome) if not outcome.error else outcome

    def learnt(self):
        """Weights that do well on the held-out rows, which is not the point here."""
        torch.manual_seed(0)
        torch.randn(64, 16), torch.randint(0, 3, (64,))
        net = Net()
        adam = torch.optim.Adam(net.parameters(), lr=0.01)
        for _ in range(60):
            loss = torch.nn.functional.cross_entropy(net(self.data["x"]), self.data["y"])
            adam.zero_grad()
            loss.backward()
            adam.step()
        return net.state_dict()


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    return Scene(tmp_path_factory.mktemp("scene"))


@pytest.fixture
def scene(planned):
    yield planned
    for name in ("result", "refused"):
        shutil.rmtree(planned.job / name, ignore_errors=True)


def noise(name, tensor):
    return torch.randn(tensor.shape) * 100


def test_a_worse_fusion_is_kept_aside_and_the_last_good_one_stays(scene):
    learnt = scene.learnt()
    good = scene.fuse(lambda name, tensor: learnt[name])
    assert good.error == ""
    found = good.validation
    assert (found.rows, found.last_loss) == (16, None)
    assert found.loss < 0.5 < found.untrained_loss
    assert torch.equal(scene.result["layers.0.weight"], learnt["layers.0.weight"])

    bad = scene.fuse(noise)
    assert "on 16 held-out rows" in bad.error
    assert bad.validation.last_loss == pytest.approx(found.loss)
    assert bad.validation.loss > 100
    assert torch.equal(scene.result["layers.0.weight"], learnt["layers.0.weight"])
    kept = scene.job / "refused"
    evidence = load_file(kept / "trained_state_dict.safetensors")
    assert not torch.equal(evidence["layers.0.weight"], learnt["layers.0.weight"])
    told = msgspec.json.decode((kept / "validation.json").read_bytes(), type=Validation)
    assert told == bad.validation

    better = scene.fuse(lambda name, tensor: learnt[name] * 1.01)
    assert better.error == ""
    assert better.validation.last_loss == pytest.approx(found.loss)


def test_a_first_fusion_is_measured_by_the_untrained_model(scene):
    outcome = scene.fuse(noise)
    assert "untrained" in outcome.error
    assert scene.result is None
    assert (scene.job / "refused" / "trained_state_dict.safetensors").is_file()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(scene, number):
    def spoilt(name, tensor):
        if name == "layers.2.bias":
            tensor[3] = number
        return tensor

    outcome = scene.fuse(spoilt)
    assert "'layers.2.bias' has numbers that are not finite" in outcome.error
    assert scene.result is None


def test_only_a_stage_that_is_the_only_one_is_at_fault_for_what_is_not_finite(tmp_path):
    """Training that diverges does that to all of them."""
    file, owners = tmp_path / "fused.safetensors", {"a": 0, "b": 1, "c": 1}
    nan, fine = torch.full((2,), float("nan")), torch.zeros(2)
    for values, stage in (((fine, nan, fine), 1), ((nan, fine, fine), 0), ((nan, nan, fine), None)):
        save_file({key: value.clone() for key, value in zip("abc", values, strict=True)}, file)
        assert stage_not_finite(file, owners) == stage
    save_file({"a": nan}, file)
    assert stage_not_finite(file, {"a": 0}) is None, "it is all there is"


def test_a_model_too_large_for_the_server_is_kept_unjudged(scene, monkeypatch):
    monkeypatch.setenv(MEMORY, "1000")
    outcome = scene.fuse(noise)
    assert outcome.error == ""
    assert outcome.validation.note == (
        "the model takes 43.5 kB, and the server allows 1 kB (ravnest server --plan-memory)"
    )
    assert scene.result is not None


def test_a_model_too_slow_for_the_server_is_kept_unjudged(scene, monkeypatch):
    monkeypatch.setattr(validating, "MOST_SECONDS", 1e-6)
    outcome = scene.fuse(noise)
    assert (outcome.error, outcome.validation.rows) == ("", 0)
    assert "longer than" in outcome.validation.note


def test_without_validation_rows_only_finiteness_is_looked_at(tmp_path):
    scene = Scene(tmp_path, validated=False)
    outcome = scene.fuse(noise)
    assert (outcome.error, outcome.validation.note) == ("", "the job has no validation rows")
    assert "not finite" in scene.fuse(lambda name, tensor: tensor * float("nan")).error


# ---- over HTTP


def test_a_job_that_is_spoilt_later_keeps_its_last_good_weights(tmp_path):
    spec, files = make_job(
        tmp_path / "job", planning={"min_cluster_size": 1, "max_clusters": 1, "max_runs": 1}
    )

    async def brought(agents, work, outcome, epochs, add):
        for agent, assignment in work.items():
            place = tmp_path / assignment.id
            results = await train(agent, assignment, place, save=f"s{epochs}", add=add)
            end = WorkEnd(outcome=outcome, epochs_done=epochs, saved=True)
            await agent.end(assignment, end, results)

    async def story(server, requester):
        async with pool(server, 1) as agents:
            job = submit(requester, spec)["id"]
            work = await assigned(agents, tmp_path)
            requester.post(f"jobs/{job}/action", json={"action": "stop"})
            for agent in agents:
                assert (await agent.expect(Steer)).action == "stop"
            await brought(agents, work, "stopped", 1, add=0.01)
            await until(server, job, job_is("stopped"))
            good = requester.get(f"jobs/{job}/result").content
            requester.post(f"jobs/{job}/action", json={"action": "resume"})
            await brought(agents, await assigned(agents, tmp_path), "done", 2, add=50.0)
            await until(server, job, job_is("failed"))
            assert requester.get(f"jobs/{job}/result").content == good
            view = requester.get(f"jobs/{job}").json()["job"]
            assert "those before stay the result" in view["reason"]
            said = [one["text"] for one in requester.get(f"jobs/{job}/events").json()]
            assert any("are fused; a loss of" in text for text in said)
            assert any("are refused" in text and "16 held-out rows" in text for text in said)

    with (
        running_server(tmp_path / "server") as server,
        server.client(server.token("requester")) as requester,
    ):
        upload(requester, files)
        asyncio.run(story(server, requester))
