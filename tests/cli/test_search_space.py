"""What a space may hold, and what the spaces of the package draw."""

import pytest

from sheafprop.cli.search_space import SearchSpace
from sheafprop.config_files import load_config, nest
from sheafprop.errors import DataError
from sheafprop.training import SheafCompletion

pytest.importorskip("optuna")
import optuna

from sheafprop.cli.study import Study


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("{}", "names no option"),
        ("lr: {type: float, low: 1, high: 2}", "'lr' is not an option to try"),
        ("data.root: {type: categorical, choices: [a]}", "'data.root' would change"),
        ("model.lr: 0.1", "'model.lr' needs a 'type'.*got 0.1"),
        ("model.lr: {type: real}", "'model.lr' needs a 'type'.*got 'real'"),
        ("model.lr: {type: float, low: 1}", "'model.lr' needs a number.*'high'.*got None"),
        ("model.lr: {type: int, low: 1, high: 2.5}", "'high'.*got 2.5"),
        ("model.lr: {type: float, low: 1, high: .inf}", "'high'.*got inf"),
        ("model.lr: {type: int, low: 3, high: 2}", "low <= high.*low=3"),
        ("model.lr: {type: float, low: 0, high: 2, log: true}", "positive 'low'.*got 0"),
        ("model.lr: {type: int, low: 1, high: 2, step: 0}", "positive 'step'"),
        ("model.lr: {type: int, low: 1, high: 2, step: 1, log: true}", "not both"),
        ("model.lr: {type: int, low: 1, high: 2, log: 1}", "'log' to be true or false"),
        ("model.lr: {type: int, low: 1, high: 2, base: 1}", "has no 'base'"),
        ("model.lr: {type: categorical, choices: []}", "'choices'.*not empty"),
    ],
)
def test_mistakes_in_a_space_are_named_with_file_and_option(tmp_path, space, message):
    file = tmp_path / "space.yaml"
    file.write_text(space)
    with pytest.raises(DataError, match=f"space.yaml.*{message}"):
        SearchSpace.load(str(file))


@pytest.mark.parametrize("start", ["preset/paper/{}", "model/{}"])
@pytest.mark.parametrize("kge", ["transe", "rotate", "transr", "se"])
def test_the_spaces_of_the_paper_draw_options_that_fit(kge, start, tmp_path):
    """Also where the configuration has another loss, whose arguments then do not count."""
    space = SearchSpace.load(f"search/paper_{kge}")
    study = Study(tmp_path, load_config(start.format(kge)), space, pruner="none")
    trial = study.study.ask()
    values = space.suggest(trial)
    model = study._with(values)["model"]
    model.pop("propagation")
    module = SheafCompletion(**model)
    for option, value in values.items():
        name, _, argument = option.removeprefix("model.").partition(".")
        found = module.hparams[name]
        assert (found[argument] if argument else found) == value


def test_values_are_drawn_within_the_bounds_and_lists_are_choices():
    space = SearchSpace(
        {
            "model.lr": {"type": "float", "low": 0.01, "high": 0.1, "log": True},
            "model.num_negatives": {"type": "int", "low": 2, "high": 8, "step": 3},
            "model.propagation.start": {"type": "categorical", "choices": [["mixed"], ["random"]]},
        }
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [space.suggest(study.ask()) for _ in range(30)]
    assert all(0.01 <= values["model.lr"] <= 0.1 for values in drawn)
    assert {values["model.num_negatives"] for values in drawn} == {2, 5, 8}
    assert {values["model.propagation.start"][0] for values in drawn} == {"mixed", "random"}
    inner = nest(drawn[0])["model"]
    assert inner["propagation"]["start"] == drawn[0]["model.propagation.start"]
    assert set(inner) == {"lr", "num_negatives", "propagation"}
