import subprocess
import sys
import textwrap

import pytest
import torch

from .cases import KGEModelCase


class TestSE(KGEModelCase):
    name = "se"

    @pytest.mark.parametrize("p", [1, 2])
    def test_scores_equal_those_of_pykeen(self, p):
        modules = pytest.importorskip("pykeen.nn.modules")
        model = self.build_double(p=p)
        interaction = modules.SEInteraction(p=p, power_norm=False)
        x, head, relation, tail = model.entity_vectors(), *self.triples()
        maps = model.rel_map_head[relation], model.rel_map_tail[relation]
        reference = interaction(x[head], maps, x[tail])
        torch.testing.assert_close(model(head, relation, tail), reference)

    def test_memory_of_scoring_and_of_training_is_bounded(self):
        # 512 x 20000 candidates x 64 numbers would be 2.6 GB, mapped candidates for each of the
        # 200 relations 1 GB; one matrix of scores is 41 MB.
        code = """
            import resource, torch
            from sheafprop.kge import SE, CrossEntropyLoss

            def peak():
                return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

            model = SE(20_000, 200, 64)
            head, relation = torch.randint(20_000, (512,)), torch.arange(512) % 200
            x = model.entity_vectors()
            start = peak()
            with torch.no_grad():
                model.score_tails(x, head, relation)
            scored = peak() - start
            CrossEntropyLoss()(model.score_heads(x, relation, head), head).backward()
            print(scored, peak() - start)
        """
        run = [sys.executable, "-c", textwrap.dedent(code)]
        output = subprocess.run(run, capture_output=True, text=True, check=True).stdout
        scored, trained = map(float, output.split())
        assert scored < 200  # MB
        assert trained < 300

    def test_maps_of_both_ends_differ(self):
        sheaf = self.build().sheaf()
        assert not torch.equal(sheaf.head, sheaf.tail)
        assert sheaf.translation is None
