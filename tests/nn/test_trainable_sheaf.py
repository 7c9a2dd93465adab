import copy
import pickle
import warnings

import lightning.pytorch as L
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from sheafprop.nn import SheafConv, SheafPropagation, TrainableSheaf
from sheafprop.sheaf import DenseSheaf, DiagonalSheaf, IdentitySheaf
from tests.sheaf_cases import SHEAF_KINDS, WIDTH, make_case

TRAINED = [kind for kind in SHEAF_KINDS if kind != "identity, untranslated"]


class Network(nn.Module):
    def __init__(self, sheaf):
        super().__init__()
        self.sheaf = TrainableSheaf(sheaf)
        self.conv = SheafPropagation(2)

    def forward(self, case):
        x = case.x.to(next(self.parameters()).dtype if not case.x.is_complex() else case.x.dtype)
        return self.conv(x, case.edge_index, case.edge_type, self.sheaf())


@pytest.mark.parametrize("kind", TRAINED)
def test_all_tensors_train_and_are_stored(kind):
    case = make_case(kind, 2)
    network = Network(case.sheaf)
    names = {f"sheaf.{name}" for name in case.sheaf.tensors()}
    if kind == "dense, shared":
        assert network.sheaf().head is network.sheaf().tail
        names.remove("sheaf.tail")
    assert set(network.state_dict()) == {name for name, _ in network.named_parameters()} == names
    assert not any(p.is_complex() for p in network.parameters())
    expected = network.conv(case.x, *case.graph)
    before = network(case)
    # With gradients the sums are ordered otherwise.
    assert torch.allclose(before, expected, atol=1e-10)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-2)
    kept = copy.deepcopy(network)
    before.abs().square().sum().backward()
    assert all((p.grad != 0).any() for p in network.parameters())
    optimizer.step()
    assert not torch.equal(network(case), before)
    # What was given stays, and so does a copy.
    assert torch.equal(network.conv(case.x, *case.graph), expected)
    assert torch.equal(kept(case), before)
    kept.load_state_dict(network.state_dict())
    assert torch.equal(kept(case), network(case))
    assert torch.equal(pickle.loads(pickle.dumps(network))(case), network(case))


def test_gradients_are_those_of_the_tensors():
    case = make_case("diagonal, complex pair", 1)
    module = TrainableSheaf(case.sheaf)
    plain = case.sheaf.map_tensors(lambda t: t.clone().requires_grad_())
    for sheaf in (module(), plain):
        SheafConv()(case.x, case.edge_index, case.edge_type, sheaf).abs().sum().backward()
    for name, tensor in plain.tensors().items():
        assert torch.allclose(torch.view_as_complex(getattr(module, name).grad), tensor.grad)


def test_number_types_follow_the_module():
    module = TrainableSheaf(make_case("identity").sheaf).float()
    assert module().dtype == torch.float32
    assert module.double()().dtype == torch.float64
    assert module.half()().dtype == torch.float16
    module = TrainableSheaf(make_case("diagonal, unitary").sheaf)
    assert module().dtype == torch.complex128
    assert module.float()().dtype == torch.complex64
    assert module.to("meta")().head.device.type == "meta"


def test_parametrizations_apply():
    case = make_case("dense, pair", 2)
    module = TrainableSheaf(case.sheaf)
    parametrizations.orthogonal(module, "head")
    square = module().head
    eye = torch.eye(WIDTH, dtype=torch.float64)
    assert torch.allclose(square.mT @ square, eye.expand(4, WIDTH, WIDTH), atol=1e-12)

    class Phases(nn.Module):
        def forward(self, pair):
            return pair / torch.linalg.vector_norm(pair, dim=-1, keepdim=True)

    module = TrainableSheaf(DiagonalSheaf(head=torch.randn(4, WIDTH, dtype=torch.complex128)))
    parametrize.register_parametrization(module, "head", Phases())
    assert torch.allclose(module().head.abs(), torch.ones(4, WIDTH, dtype=torch.float64))


def test_lightning_trains_it():
    case = make_case("identity", 2)

    class Run(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = Network(case.sheaf)

        def training_step(self, batch, index):
            return self.network(case).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    run = Run()
    before = run.network.sheaf.translation.clone()
    trainer = L.Trainer(
        max_steps=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(run, torch.utils.data.DataLoader([0]))
    assert not torch.equal(run.network.sheaf.translation, before)


def test_what_cannot_train_is_refused():
    with pytest.raises(ValueError, match=r"RelationSheaf.*got Tensor"):
        TrainableSheaf(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="to train"):
        TrainableSheaf(IdentitySheaf(relations=3))
    case, module = make_case("identity"), TrainableSheaf(IdentitySheaf(torch.zeros(4, WIDTH)))
    with pytest.raises(ValueError, match=r"call it.*got TrainableSheaf"):
        SheafConv()(case.x, case.edge_index, case.edge_type, module)


def test_repr_names_the_sheaf_and_its_parameters():
    module = TrainableSheaf(DiagonalSheaf(tail=torch.zeros(4, WIDTH)))
    assert repr(module) == "TrainableSheaf(DiagonalSheaf, tail=[4, 4])"


# The silent case --------------------------------------------------------------------------------


class Silent(nn.Module):
    """Keeps a sheaf of parameters as an attribute, as if it were a module."""

    def __init__(self, sheaf, layer):
        super().__init__()
        self.maps, self.layer = sheaf, layer

    def forward(self, x, edge_index, edge_type):
        return self.layer(x, edge_index, edge_type, self.maps)


def parameters(kind):
    case = make_case(kind, 2)
    return case, case.sheaf.map_tensors(nn.Parameter)


@pytest.mark.parametrize("kind", ["identity", "diagonal, real pair", "dense, shared"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_parameters_that_no_module_registers_are_reported(kind, wrapped):
    case, sheaf = parameters(kind)
    module = Silent(sheaf, SheafPropagation(2))
    module = nn.ModuleList([module])[0] if wrapped else module
    assert not list(module.parameters())
    with pytest.warns(UserWarning, match=r"not registered in Silent.*maps = TrainableSheaf") as log:
        module(case.x, case.edge_index, case.edge_type)
    assert log[0].filename == __file__


class Contained(Silent):
    """Keeps what a sheaf is made of in a container, and builds the sheaf in each call."""

    def __init__(self, sheaf, layer, contain):
        super().__init__(None, layer)
        self.kind, self.tables = type(sheaf), contain(sheaf)

    def forward(self, *graph):
        def tensors(value):
            if isinstance(value, torch.Tensor):
                return [value]
            items = value.values() if isinstance(value, dict) else value
            return [tensor for item in items for tensor in tensors(item)]

        return self.layer(*graph, self.kind(*tensors(self.tables)))


@pytest.mark.parametrize(
    "contain",
    [
        lambda sheaf: sheaf.tensors(),
        lambda sheaf: list(sheaf.tensors().values()),
        lambda sheaf: tuple(sheaf.tensors().values()),
        lambda sheaf: {"maps": [list(sheaf.tensors().values())]},
    ],
    ids=["dict", "list", "tuple", "nested"],
)
def test_parameters_in_containers_are_reported(contain):
    case, sheaf = parameters("diagonal, real pair")
    graph = case.x, case.edge_index, case.edge_type
    module = Contained(sheaf, SheafConv(), contain)
    assert not list(module.parameters())
    with pytest.warns(UserWarning, match=r"in 'tables' .* not registered in Contained") as log:
        module(*graph)
    assert log[0].filename == __file__

    class Owner(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.inner = nn.ParameterList(sheaf.tensors().values()), [module]

        def forward(self, *graph):
            return self.inner[0](*graph)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # of PyG, on Python 3.13
        Owner()(*graph)


def test_sheaves_in_containers_are_reported():
    case, sheaf = parameters("identity")
    graph = case.x, case.edge_index, case.edge_type

    class Chooses(nn.Module):
        def __init__(self, sheaves):
            super().__init__()
            self.sheaves = sheaves

        def forward(self, *graph):
            return SheafConv()(*graph, sheaf)

    for sheaves in ({"a": sheaf}, [None, sheaf], [{"a": (sheaf,)}]):
        with pytest.warns(UserWarning, match="in 'sheaves'.*ModuleDict"):
            Chooses(sheaves)(*graph)


def test_sheaves_that_train_elsewhere_are_not_reported():
    case, sheaf = parameters("diagonal, real pair")
    edges = case.edge_index, case.edge_type

    class Builds(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4, WIDTH).double())
            self.conv = SheafConv()

        def forward(self, x, *edges):
            return self.conv(x, *edges, DiagonalSheaf(head=self.scale))

    class Knows(Silent):
        def __init__(self, sheaf, layer):
            super().__init__(sheaf, layer)
            self.tables = nn.ParameterList(sheaf.tensors().values())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # of PyG, on Python 3.13
        Builds()(case.x, *edges)
        Knows(sheaf, SheafConv())(case.x, *edges)
        Network(case.sheaf)(case)
        SheafConv()(case.x, *edges, sheaf)
        # Nothing to train: frozen, or without gradients.
        Silent(make_case("identity").sheaf, SheafConv())(case.x, *edges)
        Silent(sheaf.map_tensors(lambda t: t.detach()), SheafConv())(case.x, *edges)
        with torch.no_grad():
            Silent(sheaf, SheafConv())(case.x, *edges)
    maps = torch.randn(4, 2, WIDTH)
    assert DenseSheaf(maps, maps).map_tensors(lambda t: t).head is maps
