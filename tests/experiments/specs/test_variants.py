"""Variants: sums, names, tables, models of their own, and what all of them share."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import resharpen as rs
from resharpen.engines.base import initial_state
from resharpen.errors import UserError
from resharpen.experiments.running.runner import run
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.toml import from_data, from_stored, read_toml, to_data
from resharpen.experiments.specs.variant import ModelChange, Variant, parse_sum
from resharpen.models import Minimal, Transformer
from resharpen.parts import Placement
from resharpen.state import arrays_of
from resharpen.tasks import Dyck, MaxRetrieval, SetComplement

OWN = """
from dataclasses import dataclass
from typing import ClassVar

import resharpen as rs


@rs.norm(a=rs.learned("d", start=1.0))
def my_dyt(x, p):
    return (p.a * x).tanh()


@rs.attention(hyperparameters={"ssmax_bias": rs.Row(0.1, 10.0)}, s=rs.learned("heads", start=0.5))
def my_ssmax(e, mask, p):
    return rs.masked_softmax((p.s * p.n.log() + p.ssmax_bias) * e, mask)


@rs.positions(on="logits", slope=rs.learned("heads", start=0.1))
def my_alibi(e, p):
    import torch

    at = torch.arange(e.shape[-1], dtype=e.dtype)
    return e - p.slope * (at[:, None] - at).abs()


@rs.optimizer(state=("velocity",), hyperparameters={"peak_learning_rate": rs.Row(1e-3, 10.0)})
def my_sgd(theta, g, state, p):
    velocity = (1 - p.one_minus_beta1) * state["velocity"] + g
    return theta - p.lr * (velocity + p.decay * theta), {"velocity": velocity}


@dataclass(frozen=True)
class Bag(rs.Model):
    vocabulary: int
    width: int = 3

    kind: ClassVar[str] = "bag"

    def parameters(self, parts):
        return {"E": rs.learned(self.vocabulary, self.width), "U": rs.learned(self.width, self.vocabulary)}

    def logits(self, theta, tokens, parts, hyper, record=None):
        return rs.linear(rs.embedding(theta["E"], tokens).cumsum(2), theta["U"])
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(f"{OWN}\n# {tmp_path}\n")
    return path


def sct(variants, **changes) -> Experiment:
    setting = Setting(SetComplement(4), 2, Minimal(4, 3, 2, 3), sizes=())  # `Bag` takes none of them
    given = {"models": 2, "steps": 3, "batch": 4, "checkpoints": 1, "engine": "torch", **changes}
    return Experiment("x", (setting,), variants, **given)


def dyck(variants, **changes) -> Experiment:
    setting = Setting(Dyck(2, 3), 9, Transformer(6, layers=1, d=8, heads=2, d_mlp=8))
    return Experiment("x", (setting,), variants, models=2, steps=3, batch=4, checkpoints=1, engine="torch", **changes)


# ---- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["peri+log-n+nope", "nope+peri+log-n", "log-n + nope + peri", "rms+log-n+nope+peri+adamw"]
)
def test_a_sum_in_any_order_is_one_variant(text):
    expected = Variant("peri", "rms", "log-n", "nope", "adamw")
    assert parse_sum(text) == expected
    spec = dyck([text])
    assert spec.variants == {"peri+log-n+nope": expected}


@pytest.mark.parametrize(
    ("spec", "text", "name"),
    [
        (sct, "nope+pre", "pre"),
        (sct, "rope+pre", "pre+rope"),
        (sct, "log-n", "pre+log-n"),
        (sct, "softmax+adamw+rms", "pre"),
        (sct, "minimal+out", "minimal+out"),
        (sct, "log-n+transformer+post", "transformer+post+log-n"),
        (dyck, "rope+pre", "pre"),
        (dyck, "nope", "pre+nope"),
    ],
)
def test_canonical_names_leave_out_what_is_usual(spec, text, name):
    assert list(spec([text]).variants) == [name]


def test_two_spellings_are_one_variant():
    with pytest.raises(UserError, match=r"variant 'pre\+log-n' is given twice"):
        sct(["pre+log-n", "log-n+pre"])
    with pytest.raises(UserError, match="variant 'pre' is given twice"):
        sct(["pre", "pre"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pre+peri", r"variant 'pre\+peri' has two parts of one kind \(placement\): pre and peri"),
        ("log-n+pre+softmax", r"two parts of one kind \(attention\): log-n and softmax"),
        ("pre+rope+nope", r"two parts of one kind \(positions\): rope and nope"),
        ("transformer+minimal", r"two parts of one kind \(model\)"),
        ("pre+lgo-n", "unknown variant 'lgo-n': did you mean 'log-n'"),
        ("peri-int", "unknown variant 'peri-int': did you mean 'peri-init'"),
        ("transfromer", "unknown variant 'transfromer': did you mean 'transformer'"),
        ("", r"unknown variant '': \(allowed: .*pre.*softmax"),
        ("pre+", "unknown variant ''"),
    ],
)
def test_bad_sums(text, message):
    with pytest.raises(UserError, match=message):
        sct([text])


@pytest.mark.parametrize(
    ("spec", "text", "message"),
    [
        (sct, "retriever", "the model 'retriever' reads items, but sct-v4 has tokens"),
        (dyck, "minimal+rope", "variant 'minimal[+]pre[+]rope': rope rotates pairs of features, but d_k = 1 is odd"),
    ],
)
def test_sums_that_mean_nothing(spec, text, message):
    with pytest.raises(UserError, match=message):
        spec([text])


def test_a_retriever_has_placements_of_its_own():
    setting = Setting(MaxRetrieval(), 16)
    spec = Experiment("x", (setting,), ["peri", "post+log-n", "log-n"], models=1, steps=1)
    assert list(spec.variants) == ["peri", "post+log-n", "none+log-n"]
    problem = spec.problem(spec.shards()[0])
    assert problem.parts.placement == Placement(block_in=True, block_out=True)
    with pytest.raises(UserError, match="a retriever has no placement 'peri-init'; none, pre, post, peri fit"):
        replace(spec, variants=["peri-init"])
    with pytest.raises(UserError, match="nope fits"):
        replace(spec, variants=["none+rope"])


# ---- tables ----------------------------------------------------------------------------------------------------------


BY_TOML = """
models = 2
steps = 3
batch = 4
checkpoints = 1
engine = "torch"
variants = ["minimal", "deep", "wide", "mine"]

[task]
v = 4
train_lengths = [2]

[variant.deep]
model = { kind = "transformer", layers = 2, d = 16, heads = 2, d_mlp = 32 }

[variant.wide]
model = { d = 7, d_v = 5 }
attention = "log-n"

[variant.mine]
placement = { block_out = true }
"""


def read(text: str) -> Experiment:
    return from_data({"name": "x", **tomllib.loads(text)})


def test_tables_say_what_no_sum_can():
    spec = read(BY_TOML)
    (setting,) = spec.settings
    assert list(spec.variants) == ["minimal+pre", "deep", "wide", "mine"]
    models = {name: setting.model_of(variant) for name, variant in spec.variants.items()}
    assert models["minimal+pre"] == models["mine"] == Minimal.usual(4)
    assert models["deep"] == Transformer(4, layers=2, d=16, heads=2, d_mlp=32)
    assert models["wide"] == Minimal(4, d=7, d_k=1, d_v=5)
    assert spec.variants["wide"].attention == "log-n"
    assert spec.variants["deep"].positions == "rope"
    assert spec.variants["mine"].placement == Placement(block_out=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[variant.mine]", "[variant.pre]", r"variant 'pre' is the name of a built-in variant: choose another name"),
        ("[variant.mine]", '[variant."pre+log-n"]', r"variant 'pre\+log-n' is the name of a built-in variant"),
        ("[variant.mine]", '[variant."log-n+pre"]', r"variant 'log-n\+pre' is the name of a built-in variant"),
        ("[variant.mine]", "[variant.transformer]", "variant 'transformer' is the name of a built-in variant"),
        ('attention = "log-n"', 'attention = "log"', "unknown attention 'log': did you mean 'log-n'"),
        ('attention = "log-n"', 'norm = "rmss"', "unknown norm 'rmss': did you mean 'rms'"),
        ('attention = "log-n"', 'positions = "roep"', "unknown positions 'roep': did you mean 'rope'"),
        ('attention = "log-n"', 'optimizer = "adam"', "unknown optimizer 'adam': did you mean 'adamw'"),
        ('attention = "log-n"', "attention = 3", "attention in .*wide.* = 3: must be a text"),
        ('attention = "log-n"', 'engine = "natve"', "unknown engine of variant 'wide' 'natve': did you mean 'native'"),
        ("d = 7", "dd = 7", "unknown size of a minimal 'dd': did you mean 'd'"),
        ("d = 7", "d = 7.5", "d in .*wide.* = 7.5: must be a whole number"),
        ("d = 7", "d = 0", "d = 0: model sizes are at least 1"),
        ("d = 7", "vocabulary = 5", "vocabulary = 5: sct-v4 has 4"),
        ('"transformer"', '"transfromer"', "unknown model 'transfromer': did you mean 'transformer'"),
        ("heads = 2", "heads = 3", "variant 'deep': d = 16: must be a multiple of the 3 heads|d = 16: must be"),
    ],
)
def test_bad_tables(old, new, message):
    assert old in BY_TOML
    name = new[len("[variant.") : -1].strip('"') if new.startswith("[variant.") else "mine"
    with pytest.raises(UserError, match=message) as error:
        read(BY_TOML.replace('"mine"]', f'"{name}"]').replace(old, new))
    assert "\n" not in str(error.value)


def test_a_table_may_have_the_name_of_what_it_is():
    """Then nothing is hidden behind the name of a built-in variant."""
    spec = read(
        BY_TOML.replace('"mine"]', '"peri+log-n"]') + '[variant."peri+log-n"]\nplacement = "peri"\nattention = "log-n"'
    )
    assert spec.variants["peri+log-n"] == Variant("peri", "rms", "log-n", "nope", "adamw")


def test_with_changes_takes_sums_and_the_names_of_a_spec(own):
    spec = read(BY_TOML).with_changes(variants=["deep", "peri+log-n", f"pre+{own}:my_dyt"])
    assert list(spec.variants) == ["deep", "peri+log-n", "pre+my_dyt"]
    assert spec.variants["deep"] == read(BY_TOML).variants["deep"]


# ---- round trips -----------------------------------------------------------------------------------------------------


def test_model_changes_read_back_the_same():
    spec = read(BY_TOML)
    assert from_data(to_data(spec)) == spec
    assert spec.variants["deep"].model == ModelChange(
        "transformer", (("d", 16), ("d_mlp", 32), ("heads", 2), ("layers", 2))
    )
    bare = sct(["transformer+peri"])
    assert dict(bare.variants["transformer+peri"].model.sizes) == {"layers": 2, "d": 64, "heads": 4, "d_mlp": 256}
    assert from_data(to_data(bare)) == bare


def test_own_parts_read_back_the_same(own, tmp_path):
    sums = [f"pre+{own}:{name}" for name in ("my_dyt", "my_ssmax", "my_alibi", "my_sgd")]
    spec = sct([*sums, f"{own}:Bag", f"peri+{own}:my_dyt+{own}:my_ssmax"])
    names = ["pre+my_dyt", "pre+my_ssmax", "pre+my_alibi", "pre+my_sgd", "Bag+none", "peri+my_dyt+my_ssmax"]
    assert list(spec.variants) == names
    assert from_data(to_data(spec)) == spec
    assert len(spec.references()) == 5
    path = tmp_path / "by.toml"
    text = BY_TOML.replace('"mine"]', '"mine", "pre+own.py:my_ssmax", "bags"]')
    text = text.replace("block_out = true }", 'block_in = true }\nnorm = "own.py:my_dyt"')
    text += '[variant.bags]\nmodel = { kind = "own.py:Bag", width = 5 }\n'
    path.write_text(text + "[hyperparameters]\nssmax_bias = [0.5, 2.0]\n")
    spec = read_toml(path)
    assert from_data(to_data(spec)) == spec
    assert spec.settings[0].model_of(spec.variants["bags"]).width == 5
    row = spec.rows(spec.variants["pre+my_ssmax"])["ssmax_bias"]
    assert spec.hyperparameters["ssmax_bias"] == (row.low, row.high) == (0.5, 2.0)
    assert "ssmax_bias" not in spec.rows(spec.variants["mine"])


def test_an_own_task_and_model_of_a_setting_read_back_the_same(own, tmp_path):
    (tmp_path / "die.py").write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\nimport numpy as np\nimport resharpen as rs\n"
        "@dataclass(frozen=True)\nclass Die(rs.TokenTask):\n    sides: int\n    longest: ClassVar[int] = 6\n"
        "    name = property(lambda self: f'die-{self.sides}')\n    vocabulary = property(lambda self: self.sides)\n"
        "    def sample(self, words):\n        return rs.below(words, self.sides)\n"
        "    def p_star(self, inputs):\n        return np.full((*inputs.shape, self.sides), 1 / self.sides)\n"
        f"# {tmp_path}\n"
    )
    task = {"kind": "die.py:Die", "sides": 3, "train_lengths": [2, 4], "model": {"kind": "own.py:Bag", "width": 2}}
    data = {"name": "x", "models": 2, "steps": 3, "checkpoints": 1, "variants": ["none"], "task": task}
    spec = from_data(data | {"engine": "torch"}, tmp_path)
    assert from_data(to_data(spec)) == spec
    assert [setting.name for setting in spec.settings] == ["die-3-s2", "die-3-s4"]
    store = run(spec, tmp_path / "r", workers=1)
    assert store.experiment.settings == spec.settings
    assert store.table("lengths")["length"].unique().sort().to_list() == [1, 2, 3, 4, 5, 6]
    assert rs.load_model(store, "die-3-s4/none/1")([[0, 2, 1]]).shape == (1, 3)


def test_a_resolved_spec_has_an_engine_for_every_variant():
    spec = sct({"pre": Variant("pre", engine="torch"), "peri": Variant("peri", engine="native")}, engine="auto")
    assert from_data(to_data(spec)) == spec


# ---- what all variants share -----------------------------------------------------------------------------------------


def shared(own) -> Experiment:
    names = ["pre", "peri+log-n", f"peri+{own}:my_dyt", f"pre+{own}:my_ssmax", "transformer+post", f"{own}:Bag"]
    sized = {
        "wide": Variant(model=ModelChange(None, (("d", 7),))),
        "deep": Variant(model=ModelChange("transformer", (("d", 8), ("d_mlp", 9), ("heads", 2), ("layers", 3)))),
        "deeper": Variant(
            "peri", model=ModelChange("transformer", (("d", 8), ("d_mlp", 9), ("heads", 2), ("layers", 4)))
        ),
    }
    return sct({name: parse_sum(name) for name in names} | sized, models=5)


def test_all_variants_see_the_same_draws(own):
    spec = shared(own)
    draws = {shard.variant: spec.ensemble(shard).hyperparameters for shard in spec.shards()}
    assert len(draws) == 9
    for variant, found in draws.items():
        for name, values in draws["pre"].items():
            assert np.array_equal(found[name], values), (variant, name)
    assert set(draws["pre+my_ssmax"]) - set(draws["pre"]) == {"ssmax_bias"}


def test_a_range_of_a_variant_s_own_leaves_the_other_rows_alone(own):
    spec = sct(["pre", f"pre+{own}:my_sgd"], models=5)
    adamw, sgd = (spec.ensemble(shard).hyperparameters for shard in spec.shards())
    assert (adamw["peak_learning_rate"] != sgd["peak_learning_rate"]).all()
    assert all(np.array_equal(adamw[name], sgd[name]) for name in adamw if name != "peak_learning_rate")


def test_all_variants_start_from_the_same_weights(own):
    """Parameters of equal name and shape, whatever the widths and depths around them."""
    spec = shared(own)
    thetas = {}
    for shard in spec.shards():
        problem, ensemble = spec.problem(shard), spec.ensemble(shard)
        thetas[shard.variant] = arrays_of(initial_state(problem, ensemble), "theta")
    compared = 0
    for a, one in thetas.items():
        for b, other in thetas.items():
            for name in set(one) & set(other):
                if a < b and one[name].shape == other[name].shape:
                    assert np.array_equal(one[name], other[name]), (a, b, name)
                    compared += one[name].std() > 0
    assert compared > 40
    assert set(thetas["deep"]) - {"E", "U"} < set(thetas["deeper"])
    assert np.array_equal(thetas["deep"]["2.mlp.W_2"], thetas["deeper"]["2.mlp.W_2"])
    # another width is another matrix of the same stream: its first numbers
    narrow, wide = (thetas[name]["W_Q"].reshape(5, -1) for name in ("pre", "wide"))
    assert narrow.shape != wide.shape
    assert np.array_equal(narrow, wide[:, : narrow.shape[1]])


def test_all_variants_see_the_same_minibatches(own):
    spec = shared(own)
    for step in (0, 7):
        batches = [spec.problem(shard).minibatch(0, step) for shard in spec.shards()]
        for batch in batches[1:]:
            assert all(np.array_equal(a, b) for a, b in zip(batch, batches[0], strict=True))
    longer = [spec.problem(shard).minibatch(0, 7) for shard in replace(spec, steps=50).shards()]
    assert np.array_equal(longer[0].inputs, batches[0].inputs)


def test_draws_are_those_of_the_paper_s_run(own):
    """Adding variants to a run, or taking some away, changes nothing about the others."""
    alone, among = sct(["pre"], models=5), shared(own)
    a, b = (spec.ensemble(spec.shards()[0]).hyperparameters for spec in (alone, among))
    assert among.shards()[0].variant == "pre"
    assert all(np.array_equal(a[name], b[name]) for name in a)


# ---- trained ---------------------------------------------------------------------------------------------------------


def test_every_kind_of_variant_trains_in_one_run(own, tmp_path):
    spec = replace(shared(own), models=2)
    alibi = parse_sum(f"pre+{own}:my_alibi")
    spec = replace(spec, variants={**spec.variants, "sloped": alibi, "slow": parse_sum(f"pre+{own}:my_sgd")})
    store = run(spec, tmp_path / "r", workers=1)
    models, lengths = store.table("models"), store.table("lengths")
    assert models.height == 11 * 2
    assert lengths.filter(metric="tvd")["value"].is_between(0, 1).all()
    families = dict(models.select("variant", "family").unique().iter_rows())
    assert families["deep"] == "transformer"
    assert families["wide"] == "minimal"
    assert families["Bag+none"].startswith("own.py:Bag@")
    assert models.filter(variant="wide")["d"].unique().to_list() == [7]
    assert models.filter(variant="pre")["layers"].null_count() == 2  # columns that not every model has
    pre = store.weights(next(s for s in store.shards() if s.variant == "pre+my_ssmax"))
    assert pre["train.last.s_my-ssmax"].shape == (2, 1)
    assert (pre["train.last.s_my-ssmax"] != 0.5).all()  # it learns
    assert rs.draw(store)["figure"].axes


def test_a_transformer_against_the_minimal_one_on_set_complement(tmp_path):
    path = tmp_path / "by.toml"
    path.write_text(BY_TOML)
    store = run(read_toml(str(path)), tmp_path / "r", workers=1)
    assert set(store.table("models")["variant"]) == {"minimal+pre", "deep", "wide", "mine"}
    deep = rs.load_model(store, "sct-v4-s2/deep/1")
    assert deep.model == Transformer(4, layers=2, d=16, heads=2, d_mlp=32)
    assert deep([[0, 3]]).shape == (1, 4)
    again = run(read_toml(path), tmp_path / "r", workers=1)
    assert len(again.done()) == len(again.shards())


def test_a_field_that_is_a_column_already_is_refused(tmp_path):
    (tmp_path / "clash.py").write_text(
        OWN.replace("width", "variant").replace('kind: ClassVar[str] = "bag"', "") + f"# {tmp_path}"
    )
    with pytest.raises(UserError, match="a model cannot have a field 'variant'"):
        sct([f"{tmp_path / 'clash.py'}:Bag"])


# ---- own parts that cannot be ------------------------------------------------------------------------------------


def test_two_parts_of_one_name_do_not_share_what_they_learn(tmp_path):
    learned = 's=rs.learned("heads", start=1.0)'
    head = "import resharpen as rs\n"
    (tmp_path / "a.py").write_text(
        f"{head}@rs.attention({learned})\ndef mine(e, mask, p):\n    return e\n# {tmp_path}\n"
    )
    (tmp_path / "b.py").write_text(
        f"{head}@rs.positions('logits', {learned})\ndef mine(e, p):\n    return e\n# {tmp_path}\n"
    )
    (tmp_path / "q.py").write_text(
        f'{head}@rs.attention(W=rs.learned("d"))\ndef Q(e, mask, p):\n    return e\n# {tmp_path}\n'
    )
    with pytest.raises(UserError, match="two learned parameters are both called 's_mine': rename mine"):
        sct([f"peri+{tmp_path}/a.py:mine+{tmp_path}/b.py:mine"])
    with pytest.raises(UserError, match="two learned parameters are both called 'W_Q': rename Q"):
        sct([f"peri+{tmp_path}/q.py:Q"])


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            "@rs.norm()\ndef f(x, p):\n    return x.mean(-1, keepdim=True)",
            r"f must return .* \[.*\] torch.float32, not \[.* 1\]",
        ),
        ("@rs.norm()\ndef f(x, p):\n    return x.double()", "not .* torch.float64"),
        ("@rs.norm()\ndef f(x, p):\n    pass", "not a NoneType"),
        ("@rs.attention()\ndef f(e, mask, p):\n    return e.sum(-1, keepdim=True)", "f must return the shape"),
        ("@rs.positions('logits')\ndef f(e, p):\n    return e[..., :1]", "f must return the shape"),
        (
            "@rs.optimizer()\ndef f(theta, g, state, p):\n    return theta",
            "an update must return the new theta and a dict",
        ),
        (
            "@rs.optimizer()\ndef f(theta, g, state, p):\n    return theta.double(), {}",
            "a different shape or type than theta",
        ),
        (
            "@rs.optimizer(state=('m',))\ndef f(theta, g, state, p):\n    return theta, {'M': g}",
            "declares the state m but returns M",
        ),
        (
            "@rs.optimizer(state=('ema',))\ndef f(theta, g, state, p):\n    return theta, state",
            "cannot have the name 'ema'",
        ),
    ],
)
def test_what_a_part_must_give(tmp_path, part, message):
    (tmp_path / "f.py").write_text(f"import resharpen as rs\n{part}\n# {tmp_path}\n")
    with pytest.raises(UserError, match=message):
        run(sct([f"peri+{tmp_path}/f.py:f"]), tmp_path / "r", workers=1)


def test_a_learned_parameter_hides_nothing():
    for declare in (rs.norm(rms_epsilon=rs.learned()), rs.attention(n=rs.learned()), rs.attention(x=rs.learned())):
        with pytest.raises(UserError, match=r"cannot be called 'rms_epsilon'|'[nx]' is reserved"):
            declare(lambda *arguments: arguments[0])
    with pytest.raises(UserError, match="cannot be called 'a': a hyperparameter has"):
        rs.norm(hyperparameters={"a": rs.Row(1, 2)}, a=rs.learned())(lambda x, p: x)


@pytest.mark.parametrize("name", ["batch", "train_length", "draw", "norm", "score"])
def test_a_hyperparameter_is_no_column_of_the_tables(tmp_path, name):
    rows = f"hyperparameters={{'{name}': rs.Row(1.0, 2.0)}}"
    (tmp_path / "f.py").write_text(
        f"import resharpen as rs\n@rs.norm({rows})\ndef f(x, p):\n    return x\n# {tmp_path}\n"
    )
    with pytest.raises(UserError, match=f"a hyperparameter cannot be called '{name}': the tables have a column"):
        sct([f"peri+{tmp_path}/f.py:f"])


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("steps: int = 3", "a model cannot have a field 'steps'"),
        ("p: float = 0.5", "p of a Sized = 0.5: must be a whole"),
    ],
)
def test_a_model_whose_fields_cannot_be_kept(tmp_path, field, message):
    (tmp_path / "f.py").write_text(
        "from dataclasses import dataclass\nimport resharpen as rs\n@dataclass(frozen=True)\nclass Sized(rs.Model):\n"
        f"    vocabulary: int\n    {field}\n    def parameters(self, parts):\n        return {{}}\n"
        f"    def logits(self, theta, tokens, parts, hyper, record=None):\n        pass\n# {tmp_path}\n"
    )
    with pytest.raises(UserError, match=message):
        sct([f"{tmp_path}/f.py:Sized"])


@dataclass(frozen=True)
class Long(SetComplement):
    steps: int = 3


def test_a_task_whose_field_is_a_column():
    with pytest.raises(UserError, match="a task cannot have a field 'steps'"):
        Experiment("x", (Setting(Long(4), 2),), ["pre"], 1, 1)


def test_norms_of_sites_as_a_sum_and_as_a_table():
    spec = read(
        """
models = 1
steps = 1
variants = ["peri+layer+rezero", "same", "other", "plain"]
[task]
v = 4
train_lengths = [2]
[variant.same]
placement = "peri"
norm = { block_out = "rezero", others = "dyt" }
[variant.other]
placement = "peri"
norm = { block_in = "layer" }
[variant.plain]
placement = "out"
norm = "layer-scale"
"""
    )
    found = {name: (variant.norm, dict(variant.norm_at)) for name, variant in spec.variants.items()}
    assert found == {
        "peri+layer+rezero": ("layer", {"block_out": "rezero"}),
        "same": ("dyt", {"block_out": "rezero"}),
        "other": ("rms", {"block_in": "layer"}),
        "plain": ("rms", {"block_out": "layer-scale"}),
    }
    again = from_stored(to_data(spec), Path("run.json"))
    assert again.variants == spec.variants
    (setting,) = spec.settings
    assert spec.variants["same"].columns(setting.model)["norm"] == "dyt & rezero at block_out"


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("pre+rezero", "there is no norm at block_out in this placement: 'rezero' would have no effect; post"),
        ("peri+rezero+layer-scale", "has two norms at block_out: rezero and layer-scale"),
        ("out+layer+rezero", "there is no norm outside its own sites in this placement: 'layer' would have no effect"),
        ("peri+cosine+wsd", "has two parts of one kind"),
    ],
)
def test_norms_of_sites_that_do_not_go_together(variant, message):
    with pytest.raises(UserError, match=message.replace("; post", "")):
        Experiment("x", (Setting(SetComplement(4), 2),), [variant], models=1, steps=1)


def test_what_was_added_later_does_not_change_the_identity_of_what_was_trained():
    assert set(Variant("peri").as_data()) == {"placement", "norm", "attention", "positions", "optimizer", "engine"}
    assert Variant("peri", schedule="cosine", dropout="dropout").as_data().items() >= {
        ("schedule", "cosine"),
        ("dropout", "dropout"),
    }


def test_schedule_and_dropout_are_parts():
    made = Experiment("x", (Setting(SetComplement(4), 2),), ["wsd+peri+dropout"], models=1, steps=1)
    assert list(made.variants) == ["peri+dropout+wsd"]
    (variant,) = made.variants.values()
    assert made.rows(variant)["dropout_rate"].high == 0.3
    assert made.problem(made.shards()[0]).schedule.name == "wsd"
