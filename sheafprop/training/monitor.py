"""What tells a good epoch from a bad one, given what there is to validate on."""

from sheafprop.data.inductive_data import InductiveData


def choose_monitor(data: InductiveData) -> tuple[str, str, str]:
    """The quantity to watch, its direction, and a sentence for the report."""
    if data.valid is not None:
        return "val/mrr", "max", "MRR of the inference graph's validation triples"
    if data.train_valid is not None:
        return (
            "val/transductive/mrr",
            "max",
            "MRR of the transductive validation triples, since the inference graph has none",
        )
    return "train/loss", "min", "the training loss, since there are no validation triples"
