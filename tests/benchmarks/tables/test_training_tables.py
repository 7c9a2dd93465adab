from benchmarks.tables.training_tables import training_table, transductive_table


def test_ratios_stand_beside_their_times():
    case = {
        "hardware": "2 cores",
        "torch": "2.13.0",
        "commit": "abc",
        "dataset": "codex-s",
        "model": "transe",
        "loss": "cross_entropy",
        "batch_size": 512,
        "train_triples": 4096,
        "test_triples": 500,
        "hidden_channels": 64,
        "seconds_epoch": 0.5,
        "seconds_epoch_pykeen": 12.0,
        "ratio_epoch": 24.0,
        "seconds_ranking": 0.02,
        "seconds_ranking_pykeen": 0.6,
        "ratio_ranking": 30.0,
        "threads": 1,
        "runs": 5,
        "ranges": {"ratio_ranking": [21.04, 31.0], "seconds_epoch": [0.25, 1.5]},
    }
    table = training_table([case, case])
    where, _, _, _, row, _ = table.strip().split("\n")
    assert where == "2 cores, torch 2.13.0, commit abc, 1 thread, median of 5 runs with their range"
    assert "range; 2 cores, torch 2.13.0, commit b, 1 thread" in training_table(
        [case, case | {"commit": "b"}]
    )
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:5] == ["CoDEx-S", "TransE", "cross entropy over all entities", "64", "512"]
    assert cells[5:9] == ["4,096 triples", "500 ms (250 ms to 1.5 s)", "12.0 s", "24.0x"]
    assert cells[9:] == ["500 triples", "20 ms", "600 ms", "30.0x (21.0x to 31.0x)"]


def test_a_model_needs_both_libraries():
    ours = {
        "dataset": "codex-s",
        "model": "rotate",
        "library": "sheafprop",
        "training": {"loss": "nssa", "hidden_channels": 32},
        "epochs": 50,
        "mrr": 0.34561,
        "seconds": 60.0,
    }
    theirs = ours | {"library": "pykeen", "mrr": 0.3401, "seconds": 180.0}
    assert "RotatE" not in transductive_table([ours])
    row = transductive_table([ours, theirs]).strip().split("\n")[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["CoDEx-S", "RotatE", "NSSA", "32", "50", "0.346", "0.340"]
