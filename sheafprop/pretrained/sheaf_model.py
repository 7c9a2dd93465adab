"""The model at work.

Long because the docstrings of all that a model does are here, once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from sheafprop.checks import check_choice, count_noun
from sheafprop.data import Vocabulary
from sheafprop.data.feature_files import read_features
from sheafprop.data.features import FeatureTable
from sheafprop.distributed import Ranks
from sheafprop.inductive.feature_map import FeatureMap
from sheafprop.inductive.proximity_scorer import ProximitySettings
from sheafprop.inductive.section_scorer import SectionScorer
from sheafprop.kge import KGEModel
from sheafprop.kge.base import Side
from sheafprop.pretrained.answers import (
    Interior,
    Queries,
    answer_by_energy,
    answer_by_entities,
    parse_queries,
)
from sheafprop.pretrained.calibration import CalibrationReport, calibrate
from sheafprop.pretrained.change_reports import ExtensionReport, RemovalReport
from sheafprop.pretrained.explanation import explain, score_triples
from sheafprop.pretrained.extension import (
    Mode,
    Propagation,
    UnknownRelation,
    extend,
    remove_entities,
)
from sheafprop.pretrained.graph_scorer import GraphScorer
from sheafprop.pretrained.model_export import export_model
from sheafprop.pretrained.model_folder import Layout, open_model_folder, write_model_folder
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.new_relations import describe_relations
from sheafprop.pretrained.prediction import predict, predict_queries
from sheafprop.pretrained.query_vectors import query_vectors
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.pretrained.triple_input import TripleInput, label_triples
from sheafprop.pretrained.triple_ranking import UnknownEntity, rank_triples
from sheafprop.query import Query
from sheafprop.ranking import RankingResult

if TYPE_CHECKING:
    import pandas as pd


class SheafModel:
    r"""A trained knowledge graph embedding model at work: vectors for new entities, predictions.

    A model is not changed by any method: :meth:`extend` and :meth:`remove` give new ones, which
    share the old vectors. Labels go in and labels come out. Vectors of new entities are the
    harmonic extension of the known ones, after Cobb and Gebhart, "Feature Propagation on Knowledge
    Graphs Using Cellular Sheaves".

    Args:
        stored (StoredModel): The trained model with its labels and facts.

    Example:
        .. code-block:: python

            model = SheafModel.load("runs/umls/rotate")
            larger = model.extend([("gene_therapy", "treats", "virus")])
            larger.predict_tails("gene_therapy", "interacts_with", k=3)
    """

    def __init__(self, stored: StoredModel):
        self._state = ModelState.from_stored(stored)
        #: What the extension or removal that made this model did; None for a loaded model.
        self.report: ExtensionReport | RemovalReport | None = None

    @classmethod
    def load(
        cls, folder: str | PathLike[str], *, verify: Literal["sizes", "full"] | None = None
    ) -> "SheafModel":
        """Loads a model folder, or the model of a run folder. Runs no code.

        The folder of a large model (from 200 000 entities on) is opened without being read: its
        vectors, labels and facts are mapped, and read where they are needed.

        Args:
            folder: The folder.
            verify: Whether to compare the SHA-256 of all files (``"full"``) or of mapped ones the
                sizes alone (``"sizes"``). (default: ``"sizes"`` for the folders of large models,
                ``"full"`` for others)

        Raises:
            FormatError: If a file is missing, truncated, edited or of a newer version.
            StorageError: If a file cannot be read.
        """
        return cls._of(open_model_folder(folder, verify=verify))

    @classmethod
    def _of(
        cls, state: ModelState, report: ExtensionReport | RemovalReport | None = None
    ) -> "SheafModel":
        model = object.__new__(cls)
        model._state, model.report = state, report
        return model

    @property
    def kge(self) -> KGEModel:
        """The trained embedding model, with its trained entities only."""
        return self._state.whole_kge

    @property
    def settings(self) -> dict[str, Any]:
        """The propagation that the run chose on validation, as plain values."""
        return self._state.trained.settings

    @property
    def metrics(self) -> dict[str, Any]:
        """What was measured when the model was trained."""
        return self._state.trained.metrics

    @property
    def relations(self) -> Vocabulary:
        """Labels of the relations."""
        return self._state.relations

    @property
    def num_entities(self) -> int:
        """Number of entities with a vector."""
        return self._state.num_entities

    @property
    def num_trained(self) -> int:
        """Number of entities that the model was trained with."""
        return self._state.num_trained

    @property
    def num_facts(self) -> int:
        """Number of observed triples."""
        return len(self._state.facts)

    @property
    def num_sections(self) -> int:
        """Number of vectors of an entity; more than one only after a ``"selected"`` extension."""
        return self._state.num_sections

    def labels(self) -> tuple[str, ...]:
        """Labels of all entities, trained ones first."""
        return self._state.index.all_labels()

    def entities(self) -> "pd.DataFrame":
        """A frame of all entities: ``entity`` and ``origin``."""
        import pandas as pd

        origins = self._state.index.origins()
        return pd.DataFrame({"entity": self.labels(), "origin": origins}, dtype=str)

    def describe_relations(self) -> "pd.DataFrame":
        """A frame of all relations: ``relation``; ``origin``, trained or fitted; the number of
        observed ``facts``; and ``residual``, the mean squared one of the facts that it was trained
        with or fitted to (NaN without any)."""
        return describe_relations(self._state)

    def facts(self) -> "pd.DataFrame":
        """A frame of the observed triples: ``head``, ``relation``, ``tail``."""
        return self._state.frame(self._state.facts.from_row(0))

    def vectors(self, labels: str | Iterable[str] | None = None) -> Tensor:
        """Vectors ``[n, s, d]`` of entities, of all without labels (a copy then).

        Raises:
            DataError: If a label is unknown.
        """
        ids = None if labels is None else self._state.index.ids(labels)
        return self._state.vectors(ids).clone()

    def scorer(self) -> SectionScorer | GraphScorer:
        """The scores of all triples, for rankings: of the vectors, or of episodes and proximity."""
        if self._state.graph_scorer is not None:
            return self._state.graph_scorer
        return SectionScorer(self.kge, self.vectors(), self._state.section_weight, self.labels())

    def with_scores(
        self,
        *,
        episodes: bool = True,
        proximity: float | None = None,
        own_last: bool | None = None,
    ) -> "SheafModel":
        r"""Gives a model that scores otherwise; vectors and facts are the same.

        Args:
            episodes: Whether the relations that were trained through the diffusion score, where
                the model has them; else its vectors do.
            proximity: Weight of proximity in the graph of facts beside the score, as
                :class:`~sheafprop.inductive.ProximitySettings` counts it; 0 for none. (default:
                that of the model)
            own_last: Whether the query's own entity is ranked last where its relation has no loop
                in training. (default: as the model says; no, where it has no proximity)

        Raises:
            ValueError: If the weight is negative.
        """
        trained = self._state.trained
        near = trained.proximity
        if proximity is not None or own_last is not None:
            near = near or ProximitySettings(weight=0.0, share=0.0, own_last=False)
            if proximity is not None:
                near = replace(near, weight=proximity, share=proximity)
            if own_last is not None:
                near = replace(near, own_last=own_last)
            if not (near.weight or near.share or near.own_last):
                near = None
        kept = trained.episodes if episodes else None
        same = kept is trained.episodes and near == trained.proximity
        calibration = trained.calibration if same else None
        trained = replace(trained, episodes=kept, proximity=near, calibration=calibration)
        return self._of(replace(self._state, trained=trained), self.report)

    def save(
        self,
        folder: str | PathLike[str],
        *,
        overwrite: bool = False,
        layout: Layout = "auto",
    ) -> Path:
        """Writes a model folder, completely or not at all.

        Files of a mapped folder that are as they were are not written again, but linked.

        Args:
            folder: Where to write.
            overwrite: Whether a model folder that is there is replaced.
            layout: ``"mapped"`` for a folder that opens without being read, ``"plain"`` for one
                that is read whole. (default: mapped from 200 000 entities on, and where the model
                was opened from a mapped folder)

        Raises:
            ValueError: If the folder exists and ``overwrite`` is False.
            StorageError: If the disk refuses; what was there before is still there.
        """
        path = Path(folder).expanduser()
        return write_model_folder(path, self._state, overwrite=overwrite, layout=layout)

    def export(
        self,
        path: str | PathLike[str],
        *,
        format: str | None = None,
        relations: str | PathLike[str] | None = None,
        facts: str | PathLike[str] | None = None,
    ) -> list[Path]:
        """Writes the vectors for other programs, a part of them at a time; see
        :func:`~sheafprop.pretrained.export_vectors`.

        With safetensors for the vectors, the relations and the facts beside them, ``sheafprop
        import arrays`` makes the same model again. All files are written, or none.

        Args:
            path: The file to write.
            format: ``"safetensors"``, ``"npy"``, ``"tsv"``, ``"word2vec"`` or ``"neo4j"``.
                (default: by the name of the file)
            relations: Where to write the relation parameters, as safetensors by their names in the
                model; their labels are in ``FILE.labels.json``. (default: nowhere)
            facts: Where to write the observed facts, as TSV. (default: nowhere)

        Raises:
            DataError: If a label cannot stand in that format, or the format is unknown.
            StorageError: If the disk refuses.
        """
        return export_model(self._state, path, format=format, relations=relations, facts=facts)

    def query_vectors(
        self, entities: str | Iterable[str], relation: str, *, side: Side = "tail"
    ) -> Tensor:
        r"""Vectors whose nearest neighbours, by Euclidean distance, are the predictions
        :math:`(h, r, ?)` of this model, for indexes of the exported vectors.

        That is :math:`\mathbf{R}_t^* (\mathbf{R}_h \mathbf{x}_h + \mathbf{b}) / s`, where
        :math:`\mathbf{R}_t^* \mathbf{R}_t = s \mathbf{I}`: for TransE and RotatE always, for
        relations that were fitted with the identity at tails (LineaRE, SE, STransE) too. Other maps
        change distances, each relation in its own way, and no one index serves them.

        Args:
            entities: Labels of the known ends.
            relation: The label of the relation.
            side: ``"tail"``, or ``"head"`` for the predictions of :math:`(?, r, t)`.

        Returns:
            Tensor: ``[n, d]``, or ``[n, 2d]`` with real and imaginary parts in turn, as ``export``
            writes vectors.

        Raises:
            DataError: If a label is unknown.
            ValueError: If nearest neighbours are no predictions: for other maps, other norms than
                the Euclidean one, several vectors of each entity, and scores that see the graph.
        """
        return query_vectors(self._state, entities, relation, side)

    def stored(self) -> StoredModel:
        """Everything in one place, as a model folder holds it."""
        return self._state.stored()

    def extend(
        self,
        triples: TripleInput,
        *,
        propagation: Propagation = "exact",
        mode: Mode = "keep",
        on_unknown_relation: UnknownRelation = "error",
        min_facts: int | None = None,
        seed: int | None = None,
        batch_size: int | None = None,
        normalize_output: bool | None = None,
        features: "FeatureTable | str | PathLike[str] | pd.DataFrame | None" = None,
    ) -> "SheafModel":
        r"""Gives a model that also has vectors for the new entities of some facts.

        Old vectors stay bit-identical and are not copied; the work is that of the new facts. With
        ``"exact"``, groups of new entities that reach a known one get the unique minimum of the
        energy, scaled as ``normalize_output`` says; groups whose system is singular are propagated
        for a finite time from a seeded start with one section. :attr:`report` says which and why.

        Args:
            triples: Facts: a path, rows ``(head, relation, tail)`` of labels, or a frame of pandas
                or polars. Labels that the model knows are its entities, the others are new.
                Integers are taken as their decimal text. A fact counts once: those given twice, or
                known to the model, are reported and not added again.
            propagation: ``"exact"``, ``"selected"`` (the choice that the run validated), or
                :class:`~sheafprop.inductive.PropagationSettings`.
            mode: ``"keep"`` leaves all old vectors. With ``"refine"``, entities of earlier
                extensions that the facts touch, and those that facts connect to them, are solved
                again together with the new ones, as if all facts had come at once.
            on_unknown_relation: ``"error"``, ``"drop"`` the facts of relations that the model has
                no maps for (they are reported), or ``"fit"`` these relations first, to their facts
                between entities that have a way to a trained one
                (:meth:`~sheafprop.kge.KGEModel.fit_relation`). All facts count for the new
                entities then. The order of the facts has no effect.
            min_facts: How many such facts each fitted relation needs. (default: 5)
            seed: Seed of random starts. (default: that of the settings)
            batch_size: Facts that are solved at once; what they need in memory, beyond facts and
                vectors, is that of a batch. Facts that share a new entity, or are connected by such
                facts, stay together. Vectors depend on it by rounding alone. (default: all)
            normalize_output: Whether new vectors are scaled to the length that the model trains
                with (:meth:`~sheafprop.kge.KGEModel.rescale_entities`), after they were solved for
                together; rows of zeros stay. (default: exact solutions where the model trains with
                unit rows, propagated vectors as their settings say)
            features: Features of entities: a file or a frame with a row for each label, see
                :func:`~sheafprop.data.read_features`. A new entity with features is drawn to what
                they predict, by :math:`\gamma \| x_v - W f_v \|^2` in the energy; without a fact,
                this is its vector, and ``triples`` may be empty. A model that was trained without
                features takes the map :math:`W` from the trained entities that have some here. See
                :class:`~sheafprop.inductive.FeatureMap`.

        Raises:
            UnknownRelationError: If a relation is unknown.
            DataError: If a triple is malformed or none is left, or a relation cannot be fitted.
            ValueError: If an argument is unknown or does not fit the model.
        """
        table = None if features is None else read_features(features)
        grown = extend(
            self._state,
            label_triples(triples, self.relations, may_lack=table is not None),
            propagation=propagation,
            mode=mode,
            on_unknown_relation=on_unknown_relation,
            min_facts=min_facts,
            seed=seed,
            batch_size=batch_size,
            normalize_output=normalize_output,
            features=table,
        )
        return self._of(*grown)

    @property
    def feature_map(self) -> FeatureMap | None:
        """The map from features of entities to vectors, where the model has one."""
        features = self._state.trained.features
        return None if features is None else features.map

    def remove(
        self,
        entities: str | Iterable[str],
        *,
        mode: Mode = "keep",
        normalize_output: bool | None = None,
    ) -> "SheafModel":
        r"""Gives a model without some entities and without the facts that name them.

        All other vectors stay bit-identical; with ``mode="refine"``, entities of earlier
        extensions that lose a fact are solved again (exactly where their system is nonsingular),
        with those that facts connect to them, and scaled as ``normalize_output`` says, see
        :meth:`extend`. :attr:`report` names them either way.

        Raises:
            DataError: If a label is unknown, or no trained entity would be left.
        """
        return self._of(*remove_entities(self._state, entities, mode, normalize_output))

    def predict_tails(
        self,
        head: str | Sequence[str],
        relation: str | Sequence[str],
        k: int = 10,
        *,
        include_known: bool = False,
    ) -> "pd.DataFrame":
        r"""The best tails of :math:`(h, r, ?)`.

        Args:
            head: A label, or as many as there are queries.
            relation: A label for all queries, or one for each.
            k: How many tails; all there are if they are fewer.
            include_known: Whether tails of observed facts may come up; a column ``known`` tells
                them apart then.

        Returns:
            A frame with columns ``head``, ``relation``, ``tail``, ``score`` (higher is better) and
            ``origin`` of the tail; best first, equal scores in the order of the model's entities.

        Raises:
            DataError: If a label is unknown; the nearest spelling is suggested.
            ValueError: If ``k`` is not positive.
        """
        return predict(self._state, "tail", head, relation, k, include_known)

    def predict_heads(
        self,
        relation: str | Sequence[str],
        tail: str | Sequence[str],
        k: int = 10,
        *,
        include_known: bool = False,
    ) -> "pd.DataFrame":
        r"""The best heads of :math:`(?, r, t)`; see :meth:`predict_tails`."""
        return predict(self._state, "head", tail, relation, k, include_known)

    def predict(
        self,
        queries: Iterable[Sequence[Any]],
        k: int = 10,
        *,
        include_known: bool = False,
        skip_unknown: bool = False,
        progress: bool = False,
    ) -> "pd.DataFrame":
        r"""The best answers to many queries, in their order.

        Queries are grouped by relation inside, as the maps of a relation are applied once for all
        of them, so their order does not matter for the time.

        Args:
            queries: Rows ``(head, relation, tail)`` of labels, with None at the open end.
            k: How many answers to each; all there are if they are fewer.
            include_known: As for :meth:`predict_tails`.
            skip_unknown: Whether queries with an unknown label are left out with a warning that
                counts them; otherwise they are an error.
            progress: Whether to show progress on standard error.

        Returns:
            The frame of :meth:`predict_tails`; what was asked for is ``head`` or ``tail``.

        Raises:
            DataError: If a query has no open end or two, a label is unknown (the query is named,
                and the nearest spelling suggested), or no query is left.
            ValueError: If ``k`` is not positive.
        """
        return predict_queries(self._state, queries, k, include_known, skip_unknown, progress)

    def score(self, triples: TripleInput, *, skip_unknown: bool = False) -> "pd.DataFrame":
        r"""Scores triples: a frame with ``head``, ``relation``, ``tail``, ``score``, ``ratio`` and
        ``known``.

        The score is the trained model's own; of a model with episodes, the mean of its scores as
        an answer at either side. The ratio is the energy
        :math:`\| R_t x_t - R_h x_h - b \|^2` over its mean in training for that relation, as in
        :meth:`explain`: scores of different relations are on different scales, ratios compare.

        Args:
            triples: The triples.
            skip_unknown: Whether triples with an unknown label are left out with a warning that
                counts them; otherwise they are an error.

        Raises:
            DataError: If a label is unknown (the nearest spelling is suggested), or no triple is
                left.
        """
        return score_triples(self._state, triples, skip_unknown)

    def rank(
        self,
        triples: TripleInput,
        *,
        known: TripleInput | None = None,
        on_unknown_entity: UnknownEntity = "error",
        facts: TripleInput | None = None,
        features: "FeatureTable | str | PathLike[str] | pd.DataFrame | None" = None,
        progress: bool = False,
        ranks: Ranks | None = None,
    ) -> RankingResult:
        r"""Ranks true triples on both sides among all entities of the model.

        The filter leaves out every other fact of the model, ranked triple and ``known`` triple.

        Args:
            triples: The true triples to rank, each once.
            known: More true triples; those with unknown labels are counted in ``result.notes``.
            on_unknown_entity: What happens to triples with an entity that the model does not know.
                ``"error"``: they are refused. ``"drop"``: they are not ranked, and counted in
                ``result.num_dropped`` and in the protocol box. ``"extend"``: the model is first
                extended by ``facts`` and ``features``, as :meth:`extend` does by default, and its
                larger version ranks; triples with an entity that has neither are dropped and
                counted.
            facts: Observed facts of the unknown entities, for ``"extend"``. A fact that is among
                ``triples`` never becomes one: it is left out of the extension and counted.
            features: Features of the entities, for ``"extend"``, as :meth:`extend` takes them;
                those of new entities that no triple names are not used.
            progress: Whether to show progress on standard error.
            ranks: The processes that share the ranking, each with the same arguments: by entities,
                or by triples where scores see the whole graph. Each has the whole result.

        Raises:
            DataError: If a label is unknown (an entity: under ``"error"``), no triple is left, or
                no fact.
            ValueError: If ``facts`` or ``features`` are given without ``"extend"``, or both missing
                with it.
        """
        table = None if features is None else read_features(features)
        return rank_triples(
            self._state, triples, known, on_unknown_entity, facts, progress, ranks, table
        )

    def answer(
        self,
        query: str | Query | Iterable[str | Query],
        k: int = 10,
        *,
        interior: Interior = "entities",
        beam: int | Literal["all"] = 64,
        derivations: int = 0,
        min_probability: float = 0.0,
        explain: bool = False,
        prior: bool = False,
    ) -> "pd.DataFrame":
        r"""The best answers to logical queries.

        The vertices between the given entities and the answer are entities by default: an answer
        is as true as its best derivation over facts, which are certain, and links that the model's
        scores predict, see :class:`~sheafprop.query.EntityScorer`. With ``interior="free"`` they
        are vectors that lie where the energy of the query graph is least, as in Cobb and Gebhart,
        and facts play no part.

        Args:
            query: A query as text, such as ``"and(via(r1, a), not(via(r2, b)))"`` (see
                :func:`~sheafprop.query.parse_query`), or a :class:`~sheafprop.query.Query`, or
                several of them.
            k: How many answers; all entities if they are fewer.
            interior: ``"entities"``, or ``"free"``, which takes no negation.
            beam: How many entities stand at a vertex between, or ``"all"``, which is exact.
            derivations: How many derivations of each answer to give: a row for every link then,
                with columns ``derivation`` (from 1 on, the best first), ``derivation_truth``,
                ``depth`` (links from there to the answer), ``source``, ``relation``, ``target``,
                ``link`` (``"fact"`` or ``"predicted"``), ``link_probability`` and ``negated``
                (whether it counts against the answer). As nested trees they are in
                ``frame.attrs["derivations"]``.
            min_probability: Answers of a smaller probability are not given; for a model with a
                calibration, see :meth:`calibrate`.
            explain: For free vertices, whether to split the energy of each answer by edge: a row
                for every edge then, with columns ``edge`` (the relation) and ``edge_energy``.
            prior: For free vertices, whether they are expected where the facts of the relations
                that leave them have entities, see :class:`~sheafprop.query.InteriorPrior`: better
                on paths.

        Returns:
            A frame with columns ``query`` and ``answer``; for entities ``truth`` (of the best
            derivations, as if links were independent), ``probability`` where the model is
            calibrated, and ``certain`` (whether a wider beam could
            not change this place), for free vertices ``score`` (minus the root of the energy,
            weighted over sections; higher is better) and ``energy``; ``origin`` of the answer;
            ``known``, whether the observed facts alone give it; and ``interior``. Queries in the
            order they were given, best answers first, equal ones in the order of the model's
            entities. What has no truth at all is no answer.

        Raises:
            DataError: If a text is not a query, a label is unknown (the nearest spelling is
                suggested), all entities but some would answer a query, it has a negation with free
                vertices, a prior is asked for without facts, or a probability without calibration.
            ValueError: If a number is out of its range, or an argument belongs to the other
                interior.
        """
        check_choice("interior", interior, ("entities", "free"))
        if interior == "free":
            if derivations or min_probability:
                raise ValueError("'derivations' and 'min_probability' need interior='entities'")
            return answer_by_energy(self._state, query, k, explain, prior)
        if explain or prior:
            raise ValueError(
                "'explain' and 'prior' are of energies: give interior='free', or ask for "
                "derivations"
            )
        return answer_by_entities(self._state, query, k, beam, derivations, min_probability)

    def calibrate(
        self, triples: TripleInput, queries: Queries = ()
    ) -> tuple["SheafModel", CalibrationReport]:
        r"""Gives a model whose predictions and answers have probabilities, and how well they hold.

        Args:
            triples: True triples of the model's entities that are no facts of it, and have not
                trained it: best such of new entities that the model was extended by. Those that are
                facts are not counted.
            queries: Queries as for :meth:`answer`; their answers over facts and these triples
                together are what truths are calibrated by, structure by structure. Structures
                without queries take the curve of all together.

        Returns:
            The model, whose frames of :meth:`predict`, :meth:`score` and :meth:`answer` have a
            column ``probability`` from now on, and the report, in which each half of the triples is
            predicted by what the other half gave. Other scores (:meth:`with_scores`) have no
            calibration.

        Raises:
            DataError: If a label is unknown, fewer than two triples are left, or a text is not a
                query.
        """
        ids = self._state.triple_ids(label_triples(triples, self.relations))
        _, parsed = parse_queries(self._state, queries)
        calibration, report = calibrate(self._state, ids, parsed)
        trained = replace(self._state.trained, calibration=calibration)
        return self._of(replace(self._state, trained=trained), self.report), report

    def explain(self, target: str | Sequence[str]) -> "pd.DataFrame":
        r"""The energy of the facts at an entity, or at the ends of a triple: what disagrees most.

        Args:
            target: The label of an entity, or a triple ``(head, relation, tail)`` of labels, which
                comes first in the frame.

        Returns:
            A frame with columns ``head``, ``relation``, ``tail``; ``energy``
            :math:`\| R_t x_t - R_h x_h - b \|^2` (weighted over sections), largest first;
            ``ratio``, the energy over its mean in training for that relation (above one: the fact
            fits worse than usual; NaN where the relation fits exactly or has no training fact);
            and ``fact``, whether the triple was observed. An entity that was added with features
            has a last row, with ``"(features)"`` as head and relation: its squared distance from
            what they predict, times their weight, and over the mean on training entities left out.

        Raises:
            DataError: If a label is unknown.
        """
        return explain(self._state, target)

    def __repr__(self) -> str:
        added, relations = self.num_entities - self.num_trained, len(self.relations)
        return (
            f"{type(self).__name__}({type(self.kge).__name__}, {self.num_trained} trained and "
            f"{added} added entities, {count_noun(relations, 'relation')}, "
            f"{count_noun(self.num_facts, 'fact')}, d={self.kge.hidden_channels})"
        )
