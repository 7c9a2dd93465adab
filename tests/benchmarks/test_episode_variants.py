from dataclasses import replace

import torch
from benchmarks.episode_variants import ColumnWeights, train_variant

from sheafprop.inductive.episode_model import EpisodeModel, EpisodeSettings
from sheafprop.kge import build_model
from sheafprop.training.episode_training import train_episodes
from tests.inductive.episode_cases import random_triples, small_model


def test_weights_of_columns_that_are_one_change_nothing():
    plain, triples = small_model("rotate", times=(1, 3)), random_triples()
    weighed = ColumnWeights(plain.maps, plain.prototypes, plain.settings).double()
    weighed.load_state_dict(plain.state_dict(), strict=False)
    random = plain.draw_sections([str(i) for i in range(9)], 0)
    entity, relation = torch.tensor([0, 4, 7]), torch.tensor([2, 0, 2])

    def score(model, side):
        return model.score(model.diffuse(triples, 9, random), entity, relation, side)

    for side in ("tail", "head"):
        torch.testing.assert_close(score(weighed, side), score(plain, side))
    for parameter in (weighed.log_score, weighed.log_diffusion):
        with torch.no_grad():
            parameter[..., 0, 1] = 0.5  # one for all relations would cancel
        assert not torch.allclose(score(weighed, "tail"), score(plain, "tail"))
        with torch.no_grad():
            parameter.zero_()


def test_variants_walk_as_the_preset_does():
    triples = random_triples(count=40)
    kge = build_model("rotate", num_nodes=9, num_relations=3, hidden_channels=4)
    settings = EpisodeSettings(num_steps=2, batch_size=8, num_random=2, walk_steps=4, walk_lr=0.5)
    found = train_variant(EpisodeModel, kge, triples, settings)
    expected, _ = train_episodes(kge, triples, settings)
    assert bool(expected.log_walk.abs().max() > 0.1)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, msg=name)
    assert (
        train_variant(EpisodeModel, kge, triples, replace(settings, walk_steps=0)).log_walk is None
    )
