"""States of arrays and built-ins, and files without pickle."""

import builtins
import importlib
import inspect
import json
import math
import os
import pickle
import pkgutil
import sys
import tracemalloc
import warnings
from collections import OrderedDict
from pathlib import Path
from types import FunctionType

import numpy as np
import pandas as pd
import pytest
import torch
from families import by_default, slow_cases
from made_by_hand import first, nodes_of, put_together, structure_of, taken_apart
from numpy.testing import assert_array_equal
from scipy import special
from sklearn.ensemble import RandomForestRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.impute import KNNImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    QuantileTransformer,
)
from torch import nn

import skgpstoch
from skgpstoch import (
    AutoGaussianProcessRegressor,
    BSGDGaussianProcessRegressor,
    ConstantVarianceRegressor,
    GaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
    SVGPRegressor,
    metrics,
)
from skgpstoch.data.findings import Diagnosis, Finding
from skgpstoch.kernels.distances import MATERN
from skgpstoch.likelihoods import Gaussian
from skgpstoch.methods.automatic.process_evidence import KERNEL_SHAPES
from skgpstoch.persistence import arrays, registry
from skgpstoch.persistence.own_names import FileNames
from skgpstoch.persistence.state import Names, PackedState, Packer, Unpacker
from skgpstoch.persistence.tensor_file import table_of

RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 3, (30, 2))
Y = np.sin(X[:, 0])
OLD = Path(__file__).parent / "data"


def again(value, names=Names):
    """The same value, from its state."""
    state = Packer(names()).state(value)
    return Unpacker(names()).value(PackedState(*pickle.loads(pickle.dumps(tuple(state)))))


# ---- arrays ------------------------------------------------------------------------------------

SQUARE = RNG.standard_normal((3, 6, 6))
ARRAYS = {
    "empty": np.empty((0, 3)),
    "number": np.array(3.5),
    "integers": np.arange(7, dtype=np.int16),
    "truths": np.array([[True, False]]),
    "big-endian": np.arange(20.0).astype(">f8"),
    "half precision": np.arange(20, dtype=np.float16),
    "NaN and infinities": np.array([np.nan, np.inf, -np.inf, -0.0] * 8),
    "general": SQUARE,
    "Fortran's order": np.asfortranarray(SQUARE),
    "other order": SQUARE.transpose(1, 2, 0),
    "backwards": SQUARE[::-1, :, ::2],
    "repeated": np.broadcast_to(np.arange(5.0), (4, 5)),
    "of single precision": SQUARE.astype(np.float32).astype(np.float64),
    "lower": np.tril(SQUARE),
    "lower, Fortran's order": np.asfortranarray(np.tril(SQUARE[0])),
    "upper": np.triu(SQUARE),
    "symmetric": SQUARE + SQUARE.swapaxes(1, 2),
    "diagonal": np.eye(9, dtype=np.float32),
    "nearly symmetric": np.eye(9) - np.tril(np.zeros((9, 9)) - 0.0) * np.where(np.eye(9), 1, -1.0),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back_to_the_last_bit(name):
    a = ARRAYS[name]
    payload, layout = arrays.kept(a)
    back = arrays.restored(payload, layout)
    native = np.ascontiguousarray(a.astype(a.dtype.newbyteorder("=")))
    assert (back.dtype, back.shape) == (native.dtype, native.shape) or a.ndim == 0
    assert np.ascontiguousarray(back).tobytes() == native.tobytes()
    assert back.flags.writeable
    assert back.ctypes.data % arrays.ALIGNMENT == 0 or not a.size
    assert payload.flags.c_contiguous
    if (a.flags.f_contiguous or a.flags.c_contiguous) and a.size:
        assert back.strides == a.strides


@pytest.mark.parametrize(
    ("name", "share"),
    [("lower", 7 / 12), ("upper", 7 / 12), ("symmetric", 7 / 12), ("of single precision", 0.5)],
)
def test_what_follows_from_the_rest_is_left_out(name, share):
    payload, _ = arrays.kept(ARRAYS[name])
    assert payload.nbytes == round(share * ARRAYS[name].nbytes)


def test_minus_zero_is_not_zero():
    a = np.tril(SQUARE[0])
    a[0, -1] = -0.0
    payload, layout = arrays.kept(a)
    assert layout.half == ""
    assert math.copysign(1.0, arrays.restored(payload, layout)[0, -1]) == -1.0


# ---- states ------------------------------------------------------------------------------------

ODD_TEXTS = ("", "text, ünd \ud800", "дом", "\0", "1", *(str(i) for i in range(100, 120)))
VALUES = [
    None,
    True,
    -3,
    2**80,
    0.1,
    math.inf,
    -math.inf,
    "text, ünd \ud800",
    [],
    (1, (2.5, None), [3]),
    {"a": {1: (2,)}, ("b", 2): frozenset({1, "x"})},
    OrderedDict(b=1, a=2),
    [0.1 * i for i in range(40)],
    {"x", 3, None},
    ODD_TEXTS,
    dict.fromkeys(ODD_TEXTS),
    {text: number for number, text in enumerate(ODD_TEXTS)},
    {text: number for number, text in enumerate((*ODD_TEXTS, None))},
    {None: 0, **{text: number for number, text in enumerate(ODD_TEXTS, 1)}},
    {text: bool(number) for number, text in enumerate(ODD_TEXTS)},
    {*ODD_TEXTS},
    frozenset((*ODD_TEXTS, None)),
    tuple(2**62 + number for number in range(20)),
    tuple(2**64 + number for number in range(20)),
    {10**12 * number: number for number in range(2000)},
    {0.1 * number for number in range(2000)},
    {np.datetime64("2020-01-01") + number for number in range(2000)},
    (*map(float, range(20)), math.inf, -0.0),
    (True,) * 20,
    np.float32(0.1),
    np.int8(-3),
    np.bool_(True),
    np.str_("text"),
    np.datetime64("2020-01-01T03"),
    Path("folder") / "file",
    torch.float32,
    torch.device("cpu"),
    torch.Size([2, 3]),
    UserWarning,
    int,
    sk.RBF([1.0, 2.0]) * 2.0 + sk.WhiteKernel(noise_level_bounds="fixed"),
    Diagnosis([Finding("a", "b", 1.0, 2.0, "problem", "c"), Finding("d", "e", math.inf, 0.0)]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("names", [Names, FileNames])
def test_values_come_back(value, names):
    (back,) = again([value], names)
    assert type(back) is type(value)
    assert repr(back) == repr(value) if not isinstance(value, set | frozenset) else back == value


def test_long_tuples_of_equal_numbers_are_not_the_same():
    whole, real = tuple(range(20)), tuple(map(float, range(20)))
    minus = (-0.0, *real[1:])
    assert repr(again([whole, real, minus])) == repr([whole, real, minus])


def test_levels_of_a_dict_and_a_set_are_stored_once():
    state = Packer(Names()).state([{t: i for i, t in enumerate(sorted(ODD_TEXTS))}, {*ODD_TEXTS}])
    assert len(state.arrays) == 2  # letters and lengths


@pytest.mark.parametrize(
    "a",
    [
        np.array(["a", "bcd"]),
        np.array([["a", 1], [None, (2, 3)]], dtype=object),
        np.array(["2020-01-01", "NaT"], dtype="M8[D]"),
        np.array([1, 2], dtype="m8[ns]"),
        np.empty((0, 2), dtype="<U3"),
    ],
    ids=lambda a: str(a.dtype),
)
def test_arrays_of_other_things_come_back(a):
    back = again(a, FileNames)
    assert back.dtype == a.dtype
    assert back.shape == a.shape
    assert_array_equal(back, a)


@pytest.mark.parametrize(
    "t",
    [
        torch.tensor(2.0),
        torch.empty(0, 3),
        torch.arange(12.0).reshape(3, 4).mT,
        torch.arange(3),
        torch.randn(3, 5).bfloat16(),
        torch.tensor([True]),
        torch.randn(4, 1).expand(4, 3),
    ],
    ids=str,
)
def test_tensors_come_back(t):
    back = again(t)
    assert type(back) is torch.Tensor
    assert (back.dtype, back.shape) == (t.dtype, t.shape)
    assert torch.equal(back, t)
    assert t.stride() == back.stride() or 0 in t.stride()


def test_what_is_shared_stays_shared():
    t, shared = torch.randn(3), {"a": 1}
    p = nn.Parameter(torch.randn(2))
    one, other, view, first, second, q, r = again([shared, shared, t[:], t, t.data, p, p])
    assert one is other
    assert view.data_ptr() == first.data_ptr() == second.data_ptr()
    assert q is r
    assert q.requires_grad


def test_modules_come_back():
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.BatchNorm1d(3)).double().eval()
    network[0].weight.requires_grad_(False)
    back = again(network, FileNames)
    rows = torch.randn(4, 2, dtype=torch.float64)
    assert torch.equal(back(rows), network(rows))
    assert [m.training for m in back.modules()] == [False] * 4
    assert [p.requires_grad for p in back.parameters()] == [False, True, True, True]
    assert back.state_dict().keys() == network.state_dict().keys()


@pytest.mark.parametrize(
    "level",
    [
        pd.Timestamp("2020-01-01 03:00"),
        pd.Timestamp("2020-07-01", tz="Europe/Vienna"),
        pd.Timedelta(36, "h"),
        pd.Period("2020-01", "M"),
        pd.Interval(0.5, 1.5, closed="left"),
        pd.Interval(pd.Timestamp("2020"), pd.Timestamp("2021")),
        pd.Interval(pd.Timedelta(0), pd.Timedelta(1, "D")),
    ],
    ids=str,
)
def test_levels_of_pandas_come_back(level):
    (back,) = again([level], FileNames)
    assert back == level
    assert hash(back) == hash(level)
    assert type(back) is type(level)


def test_other_generators_are_left_to_pickle():
    generator = np.random.RandomState(np.random.PCG64(0))
    (back,) = again([generator])
    assert_array_equal(back.standard_normal(3), generator.standard_normal(3))


def test_random_numbers_go_on():
    generator = np.random.RandomState(3)
    generator.standard_normal(3)
    back = again(generator, FileNames)
    assert_array_equal(back.standard_normal(5), generator.standard_normal(5))


@pytest.mark.parametrize("number", [np.nan, -np.inf])
def test_numbers_that_are_not_finite_have_one_node(number):
    value = [float(str(number)), float(str(number))]
    state = Packer(Names()).state(value)
    assert Packer(Names()).state(again(value)) == state


@pytest.mark.parametrize("name", registry.RETIRED)
def test_objects_that_are_not_needed_any_more_are_left_out(name):
    nodes = [
        ["type", name],
        ["type", "AutoGaussianProcessRegressor"],
        ["object", [0], "models", None],
        ["object", [1], "_model", [2], "max_time", 3.0],
    ]
    model = Unpacker(Names()).value(PackedState(json.dumps(nodes), [], []))
    assert vars(model) == {"max_time": 3.0}
    assert vars(again(model)) == vars(model)


def test_circles_are_refused():
    circle: list = []
    circle.append(circle)
    with pytest.raises(ValueError, match=r"list\[0\] refers to itself"):
        Packer(Names()).state(circle)


# ---- names -------------------------------------------------------------------------------------


def test_every_class_of_the_rooms_has_a_name_of_its_own():
    for module in pkgutil.walk_packages(skgpstoch.__path__, "skgpstoch."):
        if registry.is_room(module.name):
            importlib.import_module(module.name)  # some are not, before they are needed
    registry.known_classes.cache_clear()
    registry.known_types.cache_clear()
    for module in pkgutil.walk_packages(skgpstoch.__path__, "skgpstoch."):
        if not registry.is_room(module.name):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and value.__module__.startswith("skgpstoch"):
                assert registry.known_types().get(value.__name__, value) is value
                if value.__module__ == module.name:
                    assert registry.known_types()[value.__name__] is value


def test_all_profiles_have_a_name():
    profiles = [shape.profile for shape in KERNEL_SHAPES.values() if shape.profile]
    for function in {*MATERN.values(), *profiles}:
        assert registry.name_of(function, registry.known_functions())


def test_names_of_others_are_not_ours():
    class RBF(sk.RBF):
        pass

    assert registry.name_of(RBF, registry.known_types()) is None
    assert registry.name_of(sk.RBF, registry.known_types()) == "sklearn.RBF"
    assert not {"Checkpoint", "Path", "Popen"} & registry.known_types().keys()


def test_trusted_types_are_classes_that_can_be_imported():
    for name in skgpstoch.TRUSTED_TYPES:
        module, _, cls = name.rpartition(".")
        assert inspect.isclass(getattr(importlib.import_module(module), cls))
    assert "skgpstoch.SVGPRegressor" in skgpstoch.TRUSTED_TYPES


def test_scorers_are_trusted():
    """A search holds its scorer."""
    scorers = [value for name, value in vars(metrics).items() if name.endswith("_scorer")]
    made = [each for each in scorers if not inspect.isfunction(each)]
    assert len(made) == 3
    assert "skgpstoch.likelihoods.Poisson" in skgpstoch.TRUSTED_TYPES
    for scorer in (*made, metrics.make_coverage_scorer(0.5)):
        cls = type(scorer)
        assert f"{cls.__module__}.{cls.__name__}" in skgpstoch.TRUSTED_TYPES


# ---- objects of the user's own -----------------------------------------------------------------


class Quiet(Gaussian):
    """A likelihood of the user's."""


class Wave(nn.Module):
    """A network of the user's, of 2 features."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, rows):
        return torch.sin(self.inner(rows))


class Offset(sk.RBF):
    """A kernel of the user's."""


def steps(obj_func, initial_theta, bounds):
    """An optimizer of the user's."""
    return initial_theta, obj_func(initial_theta)[0]


def sparse(**params):
    return SVGPRegressor(n_inducing=5, max_iter=2, random_state=0, **params)


OWN = {
    "Quiet": lambda: sparse(likelihood=Quiet()),
    "Wave": lambda: sparse(feature_map=Wave()),
    "Offset": lambda: GaussianProcessRegressor(Offset() + sk.RBF(), alpha=0.1, optimizer=None),
    "steps": lambda: GaussianProcessRegressor(sk.RBF(), optimizer=steps, alpha=0.1),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", OWN)
def test_objects_of_ones_own_are_asked_for(name, tmp_path):
    model = OWN[name]().fit(X, Y)
    path = tmp_path / "model"
    model.save(path)
    expected = model.predict(X)
    assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), expected)
    assert_array_equal(skgpstoch.load(path, objects=globals()).predict(X), expected)
    for objects in (None, {"Other": Quiet}, {name: 3}):
        with pytest.raises(ValueError, match=f"{name}"):
            skgpstoch.load(path, objects=objects)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_other_classes_of_ones_own_are_warned_of(tmp_path):
    sparse(feature_map=Wave()).fit(X, Y).save(tmp_path / "model")
    with pytest.warns(UserWarning, match=r"objects\['Wave'\] is called 'Quiet'"):
        skgpstoch.load(tmp_path / "model", objects={"Wave": Quiet})


def test_what_is_asked_for_is_a_mapping(tmp_path):
    with pytest.raises(TypeError, match="objects must be a mapping of names"):
        skgpstoch.load(tmp_path / "model", objects=[Wave])


@pytest.mark.parametrize("name", ["", "nowhere/model"])
def test_paths_that_cannot_be_written_are_named(name, tmp_path):
    model = GaussianProcessRegressor()
    with pytest.raises(OSError, match="path must be") as caught:
        model.save(tmp_path / name)
    assert caught.value.filename == str(tmp_path / name)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (ConstantVarianceRegressor(RandomForestRegressor(2)), "Tree"),
        (
            GaussianProcessRegressor(sk.RBF(), optimizer=lambda *args, **_: steps(*args, None)),
            "lambda",
        ),
    ],
    ids=["forest", "lambda"],
)
def test_what_no_file_can_hold_is_refused(model, named, tmp_path):
    model.fit(X, Y)
    with pytest.raises(ValueError, match=rf"{type(model).__name__}.*{named}.*joblib\.dump"):
        model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [None, 5, b"model"])
def test_paths_are_no_other_objects(path):
    for call in (GaussianProcessRegressor().save, skgpstoch.load):
        with pytest.raises(TypeError, match=r"path must be a str or os\.PathLike, got"):
            call(path)


def test_a_description_that_no_file_is_read_with_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("skgpstoch.persistence.tensor_file.LONGEST_HEADER", 3000)
    model, path = SVGPRegressor(), tmp_path / "model"
    path.write_text("old")
    model.note_ = "x" * 3000
    with pytest.raises(ValueError, match=r"SVGPRegressor cannot be saved: its description"):
        model.save(path)
    assert path.read_text() == "old"


LEVELS = {
    "letters of other alphabets": lambda i: f"улица {i}, дом {i % 7}",
    "large integers": lambda i: 76_561_198_000_000_000 + 977 * i,
    "times": lambda i: pd.Timestamp("2020-01-01") + pd.Timedelta(i, "h"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LEVELS)
@by_default("large integers")
def test_many_levels_are_saved(kind, tmp_path):
    n, z = 600, RNG.standard_normal(600)
    frame = pd.DataFrame({"z": z, "level": [LEVELS[kind](i // 2) for i in range(n)]})
    frame["level"] = frame["level"].astype("category")
    model = AutoGaussianProcessRegressor(max_time=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(frame, np.sin(z)).save(tmp_path / "model")
    found = skgpstoch.load(tmp_path / "model").predict(frame[:9])
    assert_array_equal(found, model.predict(frame[:9]))


@pytest.mark.slow
def test_lists_that_no_file_is_read_with_are_refused(tmp_path):
    """Where they are written, not where they are read."""
    model = GaussianProcessRegressor()
    model.note_ = list(range(400_000))
    with pytest.raises(ValueError, match=r"be saved: its lists or dicts .* too many .* arrays"):
        model.save(tmp_path / "model")
    model.note_ = np.array(model.note_)
    model.save(tmp_path / "model")
    assert_array_equal(skgpstoch.load(tmp_path / "model").note_, model.note_)


def shifted(y):
    return y + 1.0


def unshifted(z):
    return z - 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transform", "is_known"),
    [
        (FunctionTransformer(np.log1p, np.expm1), True),
        (FunctionTransformer(special.expit, special.logit), True),
        (make_pipeline(FunctionTransformer(np.exp, np.log), PowerTransformer()), True),
        (QuantileTransformer(n_quantiles=9, output_distribution="normal"), True),
        (FunctionTransformer(shifted, unshifted), False),
    ],
    ids=["ufunc", "of SciPy", "pipeline", "quantiles", "function"],
)
@slow_cases("quantiles")
def test_transformers_of_targets_come_back(transform, is_known, tmp_path):
    model = sparse(target_transform=transform).fit(X, Y)
    model.save(tmp_path / "model")
    objects = None if is_known else {"shifted": shifted, "unshifted": unshifted}
    again = skgpstoch.load(tmp_path / "model", objects=objects)
    assert_array_equal(again.predict_interval(X), model.predict_interval(X))
    assert repr(again.target_transform) == repr(transform)


def test_streams_go_on_with_functions_of_another_process(tmp_path):
    transform = FunctionTransformer(shifted, unshifted)
    model = sparse(target_transform=transform).partial_fit(X, Y)
    model.save(tmp_path / "model")
    objects = {
        f.__name__: FunctionType(f.__code__, globals(), f.__name__) for f in (shifted, unshifted)
    }
    again = skgpstoch.load(tmp_path / "model", objects=objects)
    assert_array_equal(again.partial_fit(X, Y).predict(X), model.partial_fit(X, Y).predict(X))
    again.target_transform = FunctionTransformer(unshifted, shifted)
    with pytest.raises(ValueError, match="target_transform=FunctionTransformer"):
        again.partial_fit(X, Y)


@pytest.mark.parametrize("function", [abs, lambda y: y, special.log1p, np.add, np.vectorize(abs)])
def test_other_functions_are_refused(function, tmp_path):
    """SciPy's have names of NumPy's."""
    model = sparse(target_transform=FunctionTransformer(function, function))
    at = r"SVGPRegressor\.target_transform\.func.*`def`.*np\.log"
    with pytest.raises(ValueError, match=at):
        model.save(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"), [("n_inducing", "many"), ("max_iter", -5), ("kernel", np.log)]
)
def test_parameters_that_no_fit_takes_are_refused(name, value, tmp_path):
    model = sparse().fit(X, Y).set_params(**{name: value})
    with pytest.raises(ValueError, match=f"The '{name}' parameter of SVGPRegressor must be"):
        model.save(tmp_path / "model")
    model.set_params(n_inducing=7, max_iter=3, kernel=None).save(tmp_path / "model")
    again = skgpstoch.load(tmp_path / "model")
    assert again.n_inducing == 7
    assert_array_equal(again.predict(X), model.predict(X))


def test_two_classes_of_one_name_are_refused(tmp_path):
    other = type("Quiet", (Gaussian,), {})
    model = sparse(likelihood=Quiet(), feature_map=nn.Sequential(nn.Linear(2, 2), other()))
    with pytest.raises(ValueError, match="both are called 'Quiet'"):
        model.save(tmp_path / "model")


# ---- files -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models():
    kernel = 2.0 * sk.RBF([1.0, 2.0]) + sk.WhiteKernel(0.1)
    exact = GaussianProcessRegressor(kernel, optimizer=None).fit(X, Y)
    return {"exact": exact, "sparse": sparse(early_stopping=False).fit(X, Y)}


@pytest.fixture(scope="module")
def files(models, tmp_path_factory):
    paths = {name: tmp_path_factory.mktemp("files") / name for name in models}
    for name, path in paths.items():
        models[name].save(path)
    return paths


@pytest.mark.parametrize("kind", [str, Path])
def test_paths_of_either_kind(kind, models, tmp_path):
    path = kind(tmp_path / "any.suffix")
    models["exact"].save(path)
    models["exact"].save(path)  # in its place
    assert_array_equal(skgpstoch.load(path).predict(X), models["exact"].predict(X))
    assert os.listdir(tmp_path) == ["any.suffix"]


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        skgpstoch.load(tmp_path / "none")


def test_a_file_that_cannot_be_written_leaves_the_old_one(models, files, tmp_path, monkeypatch):
    path = tmp_path / "model"
    models["exact"].save(path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        models["sparse"].save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model"]


def test_nothing_is_imported_or_executed(files, models, monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("executed")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    for name in ("eval", "exec", "compile"):
        monkeypatch.setattr(builtins, name, forbidden)
    monkeypatch.setattr(importlib, "import_module", forbidden)
    before = set(sys.modules)
    loaded = skgpstoch.load(files["sparse"])
    assert set(sys.modules) == before
    assert_array_equal(loaded.predict(X), models["sparse"].predict(X))


def test_headers_are_for_people_to_read(files):
    metadata, _ = taken_apart(files["sparse"])
    assert metadata["class"] == "SVGPRegressor"
    assert json.loads(metadata["versions"])["skgpstoch"] == skgpstoch.__version__
    assert json.loads(metadata["parameters"])["n_inducing"] == "5"


@pytest.mark.slow
def test_equal_models_have_equal_files(tmp_path):
    model = sparse(target_transform=FunctionTransformer(shifted, unshifted))
    model.set_params(random_state=np.random.RandomState(1)).fit(X, Y)
    model.save(tmp_path / "first")
    loaded = skgpstoch.load(
        tmp_path / "first", objects={"shifted": shifted, "unshifted": unshifted}
    )
    loaded.save(tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    parameters = json.loads(taken_apart(tmp_path / "first")[0]["parameters"])
    assert parameters["random_state"] == "RandomState(MT19937)"


def test_the_library_of_the_format_reads_and_writes_such_files(files, models, tmp_path):
    safetensors = pytest.importorskip("safetensors")
    from safetensors.numpy import save_file

    _, ours = taken_apart(files["sparse"])
    with safetensors.safe_open(files["sparse"], framework="np") as file:
        metadata, tensors = (
            file.metadata(),
            {str(i): file.get_tensor(str(i)) for i in range(len(ours))},
        )
        assert len(file.keys()) == len(ours)
    assert all(np.array_equal(tensors[str(i)], a) for i, a in enumerate(ours))
    assert json.loads(metadata["structure"])
    save_file({"0": np.arange(3.0)}, tmp_path / "theirs", {"format": "1"})
    metadata, (tensor,) = taken_apart(tmp_path / "theirs")
    assert metadata == {"format": "1"}
    assert_array_equal(tensor, np.arange(3.0))


def test_files_of_earlier_versions_load():
    """Each with its predictions; written by `tests/data/write.py`."""
    paths = sorted(OLD.glob("*.safetensors"))
    assert len(paths) > 0
    for path in paths:
        assert path.stat().st_size <= 50_000
        kept = np.load(path.with_suffix(".npz"))
        mean, std = skgpstoch.load(path).predict(kept["X"], return_std=True)
        np.testing.assert_allclose(mean, kept["mean"], rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(std, kept["std"], rtol=1e-6, atol=1e-8)


# ---- damage ------------------------------------------------------------------------------------


def damaged(data, rng):
    """The bytes of a file after an accident."""
    data, kind = bytearray(data), rng.integers(6)
    i, j = sorted(int(k) for k in rng.integers(len(data), size=2))
    header = 8 + int.from_bytes(data[:8], "little")
    if kind == 0:
        data[i] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        i = int(rng.integers(header))
        data[i] ^= 1 << int(rng.integers(8))
    elif kind == 2:
        del data[i:]
    elif kind == 3:
        del data[i : i + 8]
    elif kind == 4:
        data[i:j] = bytes(rng.permutation(np.frombuffer(bytes(data[i:j]), np.uint8)))
    else:
        data[i:i] = rng.bytes(8)
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exact", "sparse"])
@by_default("exact")
def test_damaged_files_are_refused(name, files, models, tmp_path):
    data, rng, path = files[name].read_bytes(), np.random.default_rng(1), tmp_path / "model"
    expected, refused = models[name].predict(X), 0
    for _ in range(500):
        path.write_bytes(damaged(data, rng))
        try:
            loaded = skgpstoch.load(path)
        except ValueError:
            refused += 1
        else:
            assert_array_equal(loaded.predict(X), expected)
    assert refused > 450


def change_nodes(change):
    def hostile(path, metadata, found):
        nodes = nodes_of(metadata)
        change(nodes)
        metadata["structure"] = structure_of(nodes)
        put_together(path, metadata, found)

    return hostile


def change_table(change):
    def hostile(path, metadata, found):
        table = table_of(found)
        change(table)
        put_together(path, metadata, found, table)

    return hostile


def set_part(form, i, value):
    return change_nodes(lambda nodes: first(nodes, form).__setitem__(i, value))


def name_class(name, before="sklearn.RBF"):
    def change(nodes):
        nodes[nodes.index(["type", before])][1] = name

    return change_nodes(change)


def not_finite(nodes):
    nodes[nodes.index(["list", 1.0, 2.0])] = ["float", "nan"]


def other_shape(path, metadata, found):
    found[0] = found[0].reshape(-1, 1)
    put_together(path, metadata, found)


def metadata_with(**entries):
    return lambda path, metadata, found: put_together(path, {**metadata, **entries}, found)


def deep(path, metadata, found):
    metadata["structure"] = "[" * 5000 + "]" * 5000
    put_together(path, metadata, found)


def many_modules(path, metadata, found):
    """Each takes far more than its node; a tensor that nobody uses makes room for many of them."""
    nodes = [["type", "nn.Identity"], *[["module", [0]]] * 15_000]
    metadata["structure"] = structure_of(nodes)
    put_together(path, metadata, [*found, np.zeros(200_000)])


def again_array(nodes):
    nodes.insert(-1, first(nodes, "array"))


HOSTILE = {
    "an array twice": (change_nodes(again_array), "two arrays use tensor"),
    "many modules": (many_modules, "take far more memory"),
    "unknown class": (name_class("Popen"), "'Popen' is not a class"),
    "class of another module": (name_class("os.system"), "'os.system' is not a class"),
    "other class of ours": (name_class("Bernoulli"), "is not a class of the form"),
    "other estimator": (
        name_class("SVGPClassifier", "GaussianProcessRegressor"),
        "it does not hold a 'GaussianProcessRegressor'",
    ),
    "unknown form": (set_part("tuple", 0, "reduce"), "this form is unknown"),
    "reference to itself": (set_part("tuple", 1, [10**6]), "there is no node [0-9]+ before it"),
    "reference from behind": (set_part("tuple", 1, [-1]), "there is no node -1 before it"),
    "wrong shape": (other_shape, "must have the shape"),
    "shape that is none": (set_part("array", 3, "-3"), "the array layout is not valid"),
    "2^63 elements": (set_part("array", 3, str(2**63)), "must have the shape"),
    "half of no square": (set_part("array", 5, "lower"), "is not square|must have the shape"),
    "type of objects": (set_part("array", 2, "|O"), "the array layout is not valid"),
    "axes that are none": (set_part("array", 4, "7"), "the array layout is not valid"),
    "NaN length-scale": (change_nodes(not_finite), "length_scale is not finite"),
    "no nodes": (metadata_with(structure="[]"), "not a list of nodes"),
    "no JSON": (metadata_with(structure="[[1"), "cannot be loaded"),
    "NaN in JSON": (
        metadata_with(structure='[["list",NaN]]'),
        "contains NaN, which JSON does not allow",
    ),
    "nested": (deep, "nested too deeply"),
    "many values": (metadata_with(structure="[" + "[]," * 200_000 + "[]]"), "too many"),
    "later format": (metadata_with(format="2"), "its header is not one of version"),
    "more than was asked": (metadata_with(code="x"), "its header is not one of version"),
    "tensor of 2^63": (
        change_table(lambda t: t["0"].update(shape=[2**63])),
        "tensor 0 needs",
    ),
    "negative shape": (change_table(lambda t: t["0"].update(shape=[-1])), "the shape"),
    "shape of truths": (change_table(lambda t: t["0"].update(shape=[True])), "the shape"),
    "many axes": (change_table(lambda t: t["0"].update(shape=[1] * 99)), "the shape"),
    "unknown type": (change_table(lambda t: t["0"].update(dtype="F128")), "the type 'F128'"),
    "overlap": (
        change_table(lambda t: t["1"].update(data_offsets=[0, t["1"]["data_offsets"][1]])),
        "tensor 1 needs",
    ),
    "hole": (change_table(lambda t: t.pop(max(t, key=int))), "bytes after its header"),
    "names": (change_table(lambda t: t.update(x=t.pop("0"))), "its tensors are not numbered"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(name, files, tmp_path):
    """Their digests are right."""
    hostile, message = HOSTILE[name]
    path = tmp_path / "model"
    hostile(path, *taken_apart(files["exact"]))
    with pytest.raises(ValueError, match=message):
        skgpstoch.load(path)


def altered(nodes, rng):
    """Nodes of which one says something else."""
    node, other = (nodes[i] for i in rng.integers(len(nodes), size=2))
    i, kind = int(rng.integers(len(node))), rng.integers(5)
    if kind == 0:
        node[i] = JUNK[rng.integers(len(JUNK))]
    elif kind == 1:
        node[:] = other
    elif kind == 2:
        nodes.remove(node)
    elif kind == 3:
        node.append(JUNK[rng.integers(len(JUNK))])
    else:
        node[i] = other[rng.integers(len(other))]


JUNK = [
    0,
    -1,
    2**63,
    1e308,
    "",
    "nan",
    None,
    True,
    [0],
    [40],
    "10,10",
    "99999999",
    "|O",
    "symmetric",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exact", "sparse"])
@by_default("exact")
def test_altered_structures_are_refused_or_loaded(name, files, tmp_path):
    """Their digests are right. What is loaded may be nonsense, but loading raises nothing else."""
    rng, path, refused = np.random.default_rng(2), tmp_path / "model", 0
    for _ in range(60):
        metadata, found = taken_apart(files[name])
        nodes = nodes_of(metadata)
        altered(nodes, rng)
        metadata["structure"] = json.dumps(nodes)
        put_together(path, metadata, found)
        peak, loaded = peak_of_loading(path)
        refused += loaded is None
        assert peak < 4 * path.stat().st_size + 2**20
    assert refused > 45


def test_the_digest_is_of_all_that_is_said(files, tmp_path):
    path = tmp_path / "model"
    for name, value in [("class", "SVGPRegressor"), ("parameters", "{}")]:
        metadata, found = taken_apart(files["exact"])
        put_together(path, {**metadata, name: value}, found, sign=False)
        with pytest.raises(ValueError, match="was altered"):
            skgpstoch.load(path)
    put_together(path, *taken_apart(files["exact"]), sign=False)
    skgpstoch.load(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "only 0 bytes"),
        (
            b"\xff" * 8,
            "does not start with the length of a header; it was not written by an "
            "estimator's `save`",
        ),
        ((2**63).to_bytes(8, "little") + b"{}", "does not start with the length"),
        ((2).to_bytes(8, "little") + b"{}", "no metadata"),
        ((2).to_bytes(8, "little") + b"\xff\xff", "not printable ASCII"),
        (pickle.dumps({"a": 1}), "cannot be loaded"),
        ((17).to_bytes(8, "little") + b'{"a": 1, "a": 2} ', "the key 'a' twice"),
    ],
)
def test_other_files_are_refused(data, message, tmp_path):
    (tmp_path / "model").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        skgpstoch.load(tmp_path / "model")


def test_a_parameter_that_is_nan_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="alpha is not finite"):
        GaussianProcessRegressor(alpha=math.nan).save(tmp_path / "model")
    assert os.listdir(tmp_path) == []


def test_hooks_are_not_saved(tmp_path):
    network = nn.Sequential(nn.Linear(2, 2))
    network[0].register_forward_hook(steps)
    with pytest.raises(ValueError, match=r"Linear has .*_forward_hooks"):
        sparse(feature_map=network).save(tmp_path / "model")


def peak_of_loading(path):
    """Bytes allocated by Python and NumPy while a file is loaded or refused, and the estimator."""
    tracemalloc.start()
    try:
        loaded = skgpstoch.load(path)
    except ValueError:
        loaded = None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, loaded


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The noise variance is at its lower bound")
def test_loading_takes_no_more_than_four_times_the_file(tmp_path):
    network = SCGDGaussianProcessRegressor(
        hidden_layer_sizes=(200,), n_estimators=1, max_iter=1, random_state=0
    )
    rows = np.linspace(0, 1, 500)[:, None]
    exact = GaussianProcessRegressor(sk.RBF(), alpha=0.1, optimizer=None)
    for model in (network, exact):
        path = tmp_path / "model"
        model.fit(rows, rows[:, 0]).save(path)
        peak, loaded = peak_of_loading(path)
        assert loaded is not None
        assert peak < 4 * path.stat().st_size


@pytest.mark.parametrize("name", HOSTILE)
@slow_cases("^many modules$")
def test_hostile_files_take_no_memory(name, files, tmp_path):
    path = tmp_path / "model"
    HOSTILE[name][0](path, *taken_apart(files["exact"]))
    peak, _ = peak_of_loading(path)
    free = 2**24 if name == "many modules" else 2**20
    assert peak < 4 * path.stat().st_size + free


@pytest.mark.parametrize("options", [{}, {"hidden_layer_sizes": ()}], ids=["network", "inputs"])
def test_kernels_without_features_are_saved(options, tmp_path):
    """A layer of ours was refused as if it were the user's."""
    X = np.linspace(-1.0, 1.0, 30)[:, None]
    model = BSGDGaussianProcessRegressor(
        sk.RationalQuadratic(), max_iter=1, random_state=0, **options
    )
    model.fit(X, X[:, 0]).save(tmp_path / "model")
    assert_array_equal(skgpstoch.load(tmp_path / "model").predict(X), model.predict(X))


@pytest.mark.parametrize("name", ["SCGDGaussianProcessRegressor", "DeepGPRegressor"])
def test_streams_of_any_kind_are_saved_and_go_on(name, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = np.sin(X[:, 0])
    model = getattr(skgpstoch, name)(random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.partial_fit(X, y).save(tmp_path / "stream.safetensors")
        loaded = skgpstoch.load(tmp_path / "stream.safetensors")
        means = [each.partial_fit(X, y).predict(X) for each in (model, loaded)]
    assert_array_equal(means[1], means[0])


@pytest.mark.parametrize("given", [[1], [False, True]])
def test_columns_of_categories_may_be_an_array(given, tmp_path):
    X = np.column_stack([np.arange(30.0), np.arange(30) % 3])
    model = AutoGaussianProcessRegressor(categorical_features=np.array(given), random_state=0)
    model.fit(X, np.sin(X[:, 0])).save(tmp_path / "model")
    assert_array_equal(skgpstoch.load(tmp_path / "model").predict(X), model.predict(X))


@pytest.mark.parametrize("transformer", [OneHotEncoder(), OrdinalEncoder(), KNNImputer()], ids=str)
def test_wrapped_pipelines_of_encoders_come_back(transformer, tmp_path):
    """Their parameters have a NumPy type, or NaN for what is missing."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, (60, 2)).astype(float)
    model = ConstantVarianceRegressor(make_pipeline(transformer, Ridge())).fit(X, X[:, 0])
    model.save(tmp_path / "model.gp")
    objects = {cls.__name__: cls for cls in (type(transformer), Ridge)}
    again = skgpstoch.load(tmp_path / "model.gp", objects=objects)
    assert_array_equal(again.predict(X), model.predict(X))
    assert repr(again) == repr(model)
