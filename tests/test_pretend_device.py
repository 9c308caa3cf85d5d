"""The pretend device keeps the rules of CUDA, and counts."""

import copy
import gc
import pickle

import numpy as np
import pretend_device
import pytest
import torch
from torch import nn
from torch.nn.functional import linear

if pretend_device.WHY_NOT:
    pytest.skip(pretend_device.WHY_NOT, allow_module_level=True)

DEVICE = torch.device("pretend", 0)

pytestmark = pytest.mark.usefixtures("pretend")


def here(*shape, **options):
    """Numbers of the device."""
    numbers = torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)
    return numbers.to("pretend", **options)


def two_devices():
    return pytest.raises(RuntimeError, match="Expected all tensors to be on the same device")


# ---- tensors of two devices --------------------------------------------------------------------

WITH_A_VECTOR = {
    "sum": lambda a, b: a + b,
    "sum, the other first": lambda a, b: b + a,
    "choice": lambda a, b: torch.where(a > 0, a, b),
    "condition": lambda a, b: torch.where(b > 0, a, a),
    "product of matrices": lambda a, b: a @ b,
    "linear": lambda a, b: linear(a, b),
    "concatenation": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([b, a]),
    "distances": lambda a, b: torch.cdist(a, b),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "solve": lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
    "in place": lambda a, b: a.add_(b),
    "onto the host": lambda a, b: b.add_(a),
    "fused, onto the host": lambda a, b: b.addmm_(a, a),
    "clamp": lambda a, b: a.clamp(b),
    "rows at places": lambda a, b: a.index_copy_(0, torch.tensor([0, 1], device="pretend"), b),
    "rows assigned": lambda a, b: a.index_put((torch.tensor([0, 1], device="pretend"),), b),
    "onto rows of the host": lambda a, b: b.index_put((torch.tensor([0, 1]),), a),
    "lerp": lambda a, b: a.lerp(b, 0.5),
}


@pytest.mark.parametrize("meet", WITH_A_VECTOR.values(), ids=WITH_A_VECTOR)
def test_tensors_with_dimensions_do_not_meet(meet):
    assert meet(here(2, 2), here(2, 2)).device == DEVICE
    with two_devices():
        meet(here(2, 2), torch.ones(2, 2))


WITH_A_NUMBER = {
    "sum": lambda a, b: a + b,
    "sum, the other first": lambda a, b: b * a,
    "comparison": lambda a, b: a > b,
    "choice": lambda a, b: torch.where(a > 0, a, b),
    "power": lambda a, b: a**b,
    "in place": lambda a, b: a.mul_(b),
    "least": lambda a, b: torch.minimum(a, b),
    "filling": lambda a, b: a.fill_(b),
    "masked filling": lambda a, b: a.masked_fill(a > 2.0, b),
    "entries assigned": lambda a, b: a.index_put((torch.tensor([0]),), b),
}


@pytest.mark.parametrize("meet", WITH_A_NUMBER.values(), ids=WITH_A_NUMBER)
def test_numbers_of_the_host_meet_tensors_one_by_one(meet):
    """A tensor of the CPU without a dimension is as good as a Python number."""
    found = meet(here(2, 2), torch.tensor(3.0))
    assert found.device == DEVICE
    assert torch.equal(found.cpu(), meet(here(2, 2).cpu(), torch.tensor(3.0)))


OF_ALL = {
    "stack": lambda a, b: torch.stack([a, b]),
    "concatenation": lambda a, b: torch.cat([a[None], b[None]]),
    "dot": lambda a, b: torch.dot(a[None], b[None]),
    "onto the host": lambda a, b: b.add_(a),
    "scatter": lambda a, b: here(3).scatter_(0, torch.tensor(1), a),
}


@pytest.mark.parametrize("meet", OF_ALL.values(), ids=OF_ALL)
def test_numbers_of_the_host_meet_nothing_else(meet):
    with two_devices():
        meet(here(), torch.tensor(3.0))


def test_indices_may_be_on_the_host_but_not_of_host_tensors():
    a, rows = here(4, 2), torch.tensor([2, 0])
    assert torch.equal(a[rows].cpu(), a.cpu()[rows])
    assert torch.equal(a[rows.to("pretend")].cpu(), a.cpu()[rows])
    a[rows] = 7.0
    assert (a[rows] == 7.0).all()
    with two_devices():
        a.cpu()[rows.to("pretend")]
    with two_devices():
        a.index_select(0, rows)
    with two_devices():
        a.gather(0, rows[:, None])


def test_copies_go_both_ways():
    a, b = here(3), torch.zeros(3)
    b.copy_(a)
    assert b.tolist() == [1.0, 2.0, 3.0]
    a.copy_(torch.full((3,), 5.0))
    assert a.cpu().tolist() == [5.0, 5.0, 5.0]
    assert a.to(torch.zeros(0)).device.type == "cpu"
    assert b.to(a).device == DEVICE


def test_a_copy_shares_nothing():
    original = torch.zeros(3)
    there = original.to("pretend")
    there += 1.0
    back = there.cpu()
    back += 1.0
    assert (original.tolist(), there.cpu().tolist()) == ([0.0] * 3, [1.0] * 3)
    assert there.to("pretend") is there


# ---- arrays and numbers ------------------------------------------------------------------------


def test_a_tensor_is_no_array():
    for convert in (np.asarray, np.sqrt, lambda a: a.numpy(), lambda a: a.detach().numpy()):
        with pytest.raises(TypeError, match=r"Use Tensor\.cpu"):
            convert(here(3))
    assert here(3).cpu().numpy().tolist() == [1.0, 2.0, 3.0]


def test_arrays_are_copied_onto_the_device():
    numbers = np.ones(3)
    there = torch.as_tensor(numbers, device="pretend")
    numbers[:] = 2.0
    assert there.device == DEVICE
    assert there.cpu().tolist() == [1.0, 1.0, 1.0]
    with two_devices():
        there + torch.from_numpy(numbers)


def test_out_is_where_the_operands_are():
    a, found = here(2, 2), torch.empty(2, 2, device="pretend")
    assert torch.mm(a, a, out=found) is found
    assert torch.equal(found.cpu(), a.cpu() @ a.cpu())
    with two_devices():
        torch.mm(a, a, out=torch.empty(2, 2))
    with two_devices():
        torch.add(a.cpu(), a.cpu(), out=found)


# ---- factories and generators ------------------------------------------------------------------

FACTORIES = {
    "tensor": lambda **place: torch.tensor([1.0, 2.0], **place),
    "as_tensor": lambda **place: torch.as_tensor(np.ones(2), **place),
    "zeros": lambda **place: torch.zeros(2, **place),
    "ones": lambda **place: torch.ones(2, **place),
    "full": lambda **place: torch.full((2,), 3.0, **place),
    "empty": lambda **place: torch.empty(2, **place).fill_(1.0),
    "arange": lambda **place: torch.arange(2, **place),
    "eye": lambda **place: torch.eye(2, **place),
    "linspace": lambda **place: torch.linspace(0, 1, 5, **place),
    "triu_indices": lambda **place: torch.triu_indices(3, 3, **place),
    "zeros_like": lambda **place: torch.zeros_like(torch.ones(2), **place),
    "rand": lambda **place: torch.rand(2, generator=seeded(**place), **place),
    "randn": lambda **place: torch.randn(2, generator=seeded(**place), **place),
    "randint": lambda **place: torch.randint(9, (2,), generator=seeded(**place), **place),
    "randperm": lambda **place: torch.randperm(9, generator=seeded(**place), **place),
    "normal_": lambda **place: torch.empty(2, **place).normal_(generator=seeded(**place)),
    "bernoulli": lambda **place: torch.bernoulli(
        torch.full((9,), 0.5, **place), generator=seeded(**place)
    ),
    "multinomial": lambda **place: torch.multinomial(
        torch.ones(9, **place), 3, generator=seeded(**place)
    ),
}


def seeded(device="cpu"):
    return torch.Generator(device).manual_seed(3)


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
def test_factories_make_the_same_on_both(make):
    there = make(device="pretend")
    assert there.device == DEVICE
    assert torch.equal(there.cpu(), make(device="cpu"))


def test_what_is_made_like_a_tensor_is_where_it_is():
    a = here(3, dtype=torch.float64)
    for made in (a.new_zeros(2), a.new_tensor([1.0]), torch.ones_like(a), a.new_empty(1)):
        assert (made.device, made.dtype) == (DEVICE, torch.float64)
    assert torch.zeros(2).device.type == "cpu"


def test_generators_draw_on_their_device_alone():
    assert seeded("pretend").device == DEVICE
    assert seeded().device.type == "cpu"
    with pytest.raises(RuntimeError, match="Expected a 'pretend' device type for generator"):
        torch.randn(2, generator=seeded(), device="pretend")
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
        torch.randn(2, generator=seeded("pretend"))
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
        torch.empty(2).normal_(generator=seeded("pretend"))


def test_states_of_generators_are_on_the_host():
    generator = seeded("pretend")
    state = generator.get_state()
    first = torch.rand(3, generator=generator, device="pretend")
    generator.set_state(state)
    assert state.device.type == "cpu"
    assert torch.equal(torch.rand(3, generator=generator, device="pretend").cpu(), first.cpu())


# ---- gradients and modules ---------------------------------------------------------------------


def test_gradients_are_where_their_tensors_are():
    a = here(2, 2).requires_grad_()
    (a.square() @ a).sum().backward()
    assert a.is_leaf
    assert a.grad.device == DEVICE
    b = here(2, 2).cpu().requires_grad_()
    (b.square() @ b).sum().backward()
    assert torch.equal(a.grad.cpu(), b.grad)


def test_gradients_pass_between_devices():
    a = torch.ones(3, requires_grad=True)
    (a.to("pretend") * here(3)).sum().cpu().backward()
    assert a.grad.device.type == "cpu"
    assert a.grad.tolist() == [1.0, 2.0, 3.0]


def train(device):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 1))
    module = module.to(device)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    X = torch.arange(15.0).reshape(5, 3).sin().to(device)
    for _ in range(3):
        optimizer.zero_grad()
        module(X).square().mean().backward()
        optimizer.step()
    return module, optimizer


def test_modules_are_trained_to_the_same_bits():
    module, optimizer = train("pretend")
    assert all(p.device == DEVICE for p in [*module.parameters(), *module.buffers()])
    assert all(isinstance(p, nn.Parameter) for p in module.parameters())
    moments = [v for state in optimizer.state.values() for k, v in state.items() if k != "step"]
    assert all(moment.device == DEVICE for moment in moments)
    expected, _ = train("cpu")
    with two_devices():
        module(torch.ones(5, 3))
    back = copy.deepcopy(module).cpu()
    for name, value in expected.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name
    assert next(module.parameters()).device == DEVICE


def test_copies_are_parameters_that_share_nothing():
    module, _ = train("pretend")
    copied = copy.deepcopy(module)
    with torch.no_grad():
        copied[0].weight.zero_()
    assert isinstance(copied[0].weight, nn.Parameter)
    assert copied[0].weight.device == DEVICE
    assert module[0].weight.abs().sum() > 0.0


def test_kinds_of_modules_change_where_they_are():
    module, _ = train("pretend")
    assert module.double()[0].weight.dtype == torch.float64
    assert module[0].weight.device == DEVICE
    assert module.to("cpu", torch.float32)[0].weight.device.type == "cpu"


# ---- files -------------------------------------------------------------------------------------


def test_files_know_devices(tmp_path):
    path = tmp_path / "state.pt"
    state = {"a": here(2, 3), "n": torch.arange(3, device="pretend"), "s": here(), "b": [1.0]}
    torch.save(state, path)
    for place in ("cpu", DEVICE, None):
        loaded = torch.load(path, map_location=place, weights_only=True)
        devices = {loaded[name].device for name in "ans"}
        assert devices == {DEVICE if place is None else torch.device(place)}
        assert all(torch.equal(loaded[name].cpu(), state[name].cpu()) for name in "ans")
        assert loaded["n"].dtype == torch.int64


def test_files_of_the_host_can_be_loaded_on_the_device(tmp_path):
    path = tmp_path / "state.pt"
    torch.save({"a": torch.ones(3)}, path)
    assert torch.load(path, map_location=DEVICE, weights_only=True)["a"].device == DEVICE
    assert torch.load(path, weights_only=True)["a"].device.type == "cpu"


def test_pickles_stay_on_the_device():
    parameter = pickle.loads(pickle.dumps(nn.Parameter(here(2))))
    assert isinstance(parameter, nn.Parameter)
    assert parameter.device == DEVICE


# ---- traffic -----------------------------------------------------------------------------------


def counts(pretend):
    return pretend.to_device, pretend.to_host, pretend.n_waits


ASKING = {
    "item": lambda a: a[0].item(),
    "bool": lambda a: bool((a > 0).all()),
    "float": lambda a: float(a[0]),
    "int": lambda a: int(a[0]),
    "list": lambda a: a.tolist(),
    "mask": lambda a: a[a > 1.0],
    "nonzero": lambda a: a.nonzero(),
    "masked_select": lambda a: a.masked_select(a > 1.0),
    "equal": lambda a: torch.equal(a, a),
    "unique": lambda a: a.unique(),
    "cholesky": lambda a: torch.linalg.cholesky(a.diag()),
    "multinomial": lambda a: a.multinomial(1),
    "bincount": lambda a: a.long().bincount(minlength=9),
    "eigenvalues": lambda a: torch.linalg.eigh(a.diag()),
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_who_asks_waits(pretend, ask):
    a = here(3)
    pretend.clear()
    ask(a)
    assert counts(pretend) == (0, 0, 1)


BLIND = {
    "arithmetic": lambda a: (a + 1.0).sum(),
    "choice": lambda a: torch.where(a > 1.0, a, 0.0),
    "masked_fill": lambda a: a.masked_fill(a > 1.0, 0.0),
    "indices": lambda a: a[torch.tensor([0, 2], device="pretend")],
    "slices": lambda a: a[1:],
    "cholesky_ex": lambda a: torch.linalg.cholesky_ex(a.diag()),
    "shape": lambda a: len(a) + a.numel(),
    "clone": lambda a: a.clone().double(),
    "draws": lambda a: torch.rand(3, device="pretend"),
}


@pytest.mark.parametrize("go_on", BLIND.values(), ids=BLIND)
def test_others_go_on(pretend, go_on):
    a = here(3)
    torch.tensor(0, device="pretend")
    pretend.clear()
    go_on(a)
    waits = counts(pretend)[1:]
    assert waits == (0, 0)


def test_copies_are_counted(pretend):
    a = torch.ones(3)
    there = a.to("pretend")
    assert counts(pretend) == (1, 0, 0)
    there.to("pretend").double()
    assert counts(pretend) == (1, 0, 0)
    there.cpu()
    assert counts(pretend) == (1, 1, 1)  # the host waits for what it is to get
    there.copy_(a)
    a.copy_(there)
    assert counts(pretend) == (2, 2, 2)
    torch.tensor([1.0], device="pretend")
    assert pretend.to_device == 3
    pretend.clear()
    assert (*counts(pretend), pretend.n_operations) == (0, 0, 0, 0)


def test_indices_of_the_host_are_copied(pretend):
    """CUDA copies them, and each list of places is a tensor of the host."""
    a = here(3)
    pretend.clear()
    a[torch.tensor([0, 2])]
    a[[0, 2]]
    a[torch.tensor([True, False, True])]
    assert counts(pretend) == (3, 0, 0)


def test_operations_of_both_passes_are_counted(pretend):
    a = here(3).requires_grad_()
    pretend.clear()
    loss = (a * a).sum()
    forward = pretend.n_operations
    loss.backward()
    assert 2 <= forward < pretend.n_operations


def test_operations_of_the_host_are_not_counted(pretend):
    torch.ones(3) + torch.ones(3)
    assert (*counts(pretend), pretend.n_operations) == (0, 0, 0, 0)


# ---- memory ------------------------------------------------------------------------------------


@pytest.fixture
def before(pretend):
    """Bytes that are alive before the test."""
    gc.collect()
    pretend.clear()
    return pretend.alive


@pytest.mark.slow
def test_bytes_alive(pretend, before):
    a = torch.zeros(1000, device="pretend")
    assert pretend.alive - before == 4000
    b = a[:500].reshape(50, 10)  # of the same memory
    assert pretend.alive - before == 4000
    c = a.double()
    assert pretend.alive - before == 12000
    del a, c
    assert pretend.alive - before == 4000
    del b
    assert pretend.alive == before
    assert pretend.peak - before == 12000
    pretend.clear()
    assert pretend.peak == before


@pytest.mark.slow
def test_what_the_backward_pass_needs_is_alive(pretend, before):
    a = torch.ones(1000, device="pretend", requires_grad=True)
    loss = a.exp().sum()
    assert pretend.alive - before == 8004
    loss.backward()
    assert pretend.alive - before >= 8004
    del loss
    assert pretend.alive - before == 8000
    a.grad = None
    assert pretend.alive - before == 4000


@pytest.mark.slow
def test_in_place_takes_no_memory(pretend, before):
    a = torch.zeros(1000, device="pretend")
    a += 1.0
    a.mul_(2.0).clamp_(max=1.0)
    torch.add(a, a, out=a)
    assert (pretend.alive - before, pretend.peak - before) == (4000, 4000)


@pytest.mark.slow
def test_memory_runs_out_at_the_budget(pretend, before):
    pretend.budget = pretend.alive + 10_000
    a = torch.zeros(1000, device="pretend")
    assert torch.get_device_module("pretend").mem_get_info()[0] == 6000
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.zeros(2000, device="pretend")
    with pytest.raises(torch.OutOfMemoryError):
        a.double()
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(2000).to("pretend")
    assert pretend.alive - before == 4000  # what failed is gone
    torch.zeros(1500, device="pretend")
    del a
    torch.zeros(2000, device="pretend")
