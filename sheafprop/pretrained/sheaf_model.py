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
from sheafprop.pretrained.extension import (
    Mode,
    Propagation,
    UnknownRelation,
    extend,
    remove_entities,
)
from sheafprop.pretrained.graph_scorer import GraphScorer
from sheafprop.pretrained.model_folder import Layout, open_model_folder, write_model_folder
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.new_relations import describe_relations
from sheafprop.pretrained.prediction import (
    explain,
    predict,
    predict_queries,
    query_vectors,
    score_triples,
)
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.pretrained.triple_input import TripleInput, label_triples
from sheafprop.pretrained.triple_ranking import UnknownEntity, rank_triples
from sheafprop.pretrained.vector_export import export_model
from sheafprop.query import Query
from sheafprop.ranking import RankingResult

if TYPE_CHECKING:
    import pandas as pd


class SheafModel:
    r"""A trained knowledge graph embedding model that can be extended by new entities.

    Models are immutable: :meth:`extend` and :meth:`remove` return new models, which share the
    existing vectors. All methods take and return labels. Vectors of new entities are the harmonic
    extension of the known ones, from Cobb and Gebhart, "Feature Propagation on Knowledge Graphs
    Using Cellular Sheaves".

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
        """Loads a model folder, or the model of a run folder, without executing code.

        The folder of a large model (200 000 or more entities) is memory-mapped: its vectors, labels
        and facts are read when they are used.

        Args:
            folder: The folder.
            verify: Whether to check the SHA-256 of all files (``"full"``), or only the sizes of
                mapped ones (``"sizes"``). (default: ``"sizes"`` for the folders of large models,
                ``"full"`` for others)

        Raises:
            FormatError: If a file is missing, truncated, modified or of a newer version.
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
        """The trained embedding model, with the trained entities only."""
        return self._state.whole_kge

    @property
    def settings(self) -> dict[str, Any]:
        """The propagation settings that the run selected on validation, as plain values."""
        return self._state.trained.settings

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the training run."""
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
        """Number of vectors per entity; more than one only after a ``"selected"`` extension."""
        return self._state.num_sections

    def labels(self) -> tuple[str, ...]:
        """Labels of all entities, trained ones first."""
        return self._state.index.all_labels()

    def entities(self) -> "pd.DataFrame":
        """Returns a frame of all entities: ``entity`` and ``origin``."""
        import pandas as pd

        origins = self._state.index.origins()
        return pd.DataFrame({"entity": self.labels(), "origin": origins}, dtype=str)

    def describe_relations(self) -> "pd.DataFrame":
        """Returns a frame of all relations: ``relation``; ``origin``, trained or fitted; the number
        of observed ``facts``; and ``residual``, the mean squared residual of the facts used for
        training or fitting (NaN without facts)."""
        return describe_relations(self._state)

    def facts(self) -> "pd.DataFrame":
        """Returns a frame of the observed triples: ``head``, ``relation``, ``tail``."""
        return self._state.frame(self._state.facts.from_row(0))

    def vectors(self, labels: str | Iterable[str] | None = None) -> Tensor:
        """Returns the vectors ``[n, s, d]`` of entities; without labels, a copy of all vectors.

        Raises:
            DataError: If a label is unknown.
        """
        ids = None if labels is None else self._state.index.ids(labels)
        return self._state.vectors(ids).clone()

    def scorer(self) -> SectionScorer | GraphScorer:
        """Returns the scoring functions for rankings: of the vectors, or of episodes and
        proximity."""
        if self._state.graph_scorer is not None:
            return self._state.graph_scorer
        return SectionScorer(self.kge, self.vectors(), self._state.section_weight, self.labels())

    def with_scores(
        self, *, episodes: bool = True, proximity: float | None = None, own_last: bool | None = None
    ) -> "SheafModel":
        r"""Returns a model with different scores and the same vectors and facts.

        Args:
            episodes: Whether to score by the relations that were trained through the diffusion, if
                the model has them, instead of its vectors.
            proximity: Weight of proximity in the graph of facts, see
                :class:`~sheafprop.inductive.ProximitySettings`; 0 for none, nor the frequency of
                answers. (default: that of the model)
            own_last: Whether the query entity is ranked last if its relation has no self-loops in
                training. (default: that of the model; False without proximity)

        Raises:
            ValueError: If the weight is negative.
        """
        trained = self._state.trained
        near = trained.proximity
        if proximity is not None or own_last is not None:
            near = near or ProximitySettings(weight=0.0, share=0.0, own_last=False)
            if proximity is not None:
                near = replace(near, weight=proximity, share=proximity)
                near = near if proximity else replace(near, frequency=0.0)
            if own_last is not None:
                near = replace(near, own_last=own_last)
            if not (near.weight or near.share or near.frequency or near.own_last):
                near = None
        kept = trained.episodes if episodes else None
        same = kept is trained.episodes and near == trained.proximity
        calibration = trained.calibration if same else None
        trained = replace(trained, episodes=kept, proximity=near, calibration=calibration)
        return self._of(replace(self._state, trained=trained), self.report)

    def save(
        self, folder: str | PathLike[str], *, overwrite: bool = False, layout: Layout = "auto"
    ) -> Path:
        """Writes a model folder atomically.

        Unchanged files of a mapped folder are linked.

        Args:
            folder: The folder.
            overwrite: Whether to replace an existing model folder.
            layout: ``"mapped"`` for a folder that is memory-mapped, ``"plain"`` for one that is
                read into memory. (default: mapped for 200 000 or more entities, and if the model
                was opened from a mapped folder)

        Raises:
            ValueError: If the folder exists and ``overwrite`` is False.
            StorageError: If a file cannot be written; an existing folder then does not change.
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
        nodes: str | PathLike[str] | None = None,
    ) -> list[Path]:
        """Writes the vectors for other programs, in blocks; see
        :func:`~sheafprop.pretrained.export_vectors`.

        From safetensors files of the vectors and the relations and a file of the facts,
        ``sheafprop import arrays`` restores the model. Either all files are written or none.

        Args:
            path: The file to write.
            format: ``"safetensors"``, ``"npy"``, ``"tsv"``, ``"word2vec"`` or ``"neo4j"``.
                (default: by the name of the file)
            relations: A file for the relation parameters, as safetensors by their names in the
                model; their labels are written to ``FILE.labels.json``. (default: None)
            facts: A file for the observed facts, as TSV. (default: None)
            nodes: The nodes as Neo4j exported them, which ``"neo4j"`` writes with all their columns
                and the vectors. (default: the labels alone)

        Raises:
            DataError: If a label cannot be represented in the format, or the format is unknown.
            StorageError: If the disk refuses.
        """
        return export_model(
            self._state, path, format=format, relations=relations, facts=facts, nodes=nodes
        )

    def query_vectors(
        self, entities: str | Iterable[str], relation: str, *, side: Side = "tail"
    ) -> Tensor:
        r"""Returns vectors whose nearest neighbors, by Euclidean distance, are the predictions
        :math:`(h, r, ?)` of this model, for indexes of the exported vectors.

        That is :math:`\mathbf{R}_t^* (\mathbf{R}_h \mathbf{x}_h + \mathbf{b}) / s`, where
        :math:`\mathbf{R}_t^* \mathbf{R}_t = s \mathbf{I}`. This holds for TransE and RotatE, and
        for relations that were fitted with the identity at tails (LineaRE, SE, STransE). Other maps
        change distances differently for each relation, so a single index is not sufficient.

        Args:
            entities: Labels of the known ends.
            relation: The label of the relation.
            side: ``"tail"``, or ``"head"`` for the predictions of :math:`(?, r, t)`.

        Returns:
            Tensor: ``[n, d]``, or ``[n, 2d]`` with alternating real and imaginary parts, as written
                by ``export``.

        Raises:
            DataError: If a label is unknown.
            ValueError: If nearest neighbors are not predictions: for other maps, norms other than
                the Euclidean one, several vectors per entity, and scores that depend on the graph.
        """
        return query_vectors(self._state, entities, relation, side)

    def stored(self) -> StoredModel:
        """Returns the contents of a model folder, in memory."""
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
        r"""Returns a model with additional vectors for the new entities in facts.

        Existing vectors stay bit-identical and are not copied; the cost is proportional to the new
        facts. With ``"exact"``, connected groups of new entities with a known neighbor get the
        unique minimum of the energy, scaled according to ``normalize_output``; groups with a
        singular system are propagated for a finite time from a seeded start with one section.
        :attr:`report` lists both, with the reasons.

        Args:
            triples: Facts: a path, rows ``(head, relation, tail)`` of labels, or a frame of pandas
                or polars. Labels in the model refer to its entities; all others are new. Integers
                are converted to decimal text. Facts that are repeated or known to the model are
                reported and not added again.
            propagation: ``"exact"``, ``"selected"`` (the settings that the run selected), or
                :class:`~sheafprop.inductive.PropagationSettings`.
            mode: ``"keep"`` keeps all existing vectors. ``"refine"`` also recomputes the vectors of
                entities of earlier extensions that occur in the facts or are connected to them, as
                if all facts had been given at once.
            on_unknown_relation: ``"error"``; ``"drop"`` facts with unknown relations and report
                them; or ``"fit"`` these relations first, to their facts between entities that are
                connected to a trained one (:meth:`~sheafprop.kge.KGEModel.fit_relation`). New
                entities are then computed from all facts. The order of the facts has no effect.
            min_facts: Minimum number of such facts for each fitted relation. (default: 5)
            seed: Seed of random starts. (default: that of the settings)
            batch_size: Number of facts processed at once, which bounds the memory beyond facts and
                vectors. Facts that are connected through new entities stay together. It changes
                vectors only by rounding. (default: all)
            normalize_output: Whether new vectors are scaled to the norm used in training
                (:meth:`~sheafprop.kge.KGEModel.rescale_entities`); rows of zeros do not change.
                (default: True for exact solutions if the model trains with unit rows, that of the
                settings for propagated vectors)
            features: Features of entities: a file or a frame with a row for each label, see
                :func:`~sheafprop.data.read_features`. A new entity with features has the term
                :math:`\gamma \| x_v - W f_v \|^2` in the energy; without facts, the prediction
                :math:`W f_v` is its vector, and ``triples`` may be empty. For a model that was
                trained without features, the map :math:`W` is fitted to the trained entities with
                features here. See :class:`~sheafprop.inductive.FeatureMap`.

        Raises:
            UnknownRelationError: If a relation is unknown.
            DataError: If a triple is malformed, no triple is left, or a relation cannot be fitted.
            ValueError: If an argument is invalid for the model.
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
        """The map from features of entities to vectors, if the model has one."""
        features = self._state.trained.features
        return None if features is None else features.map

    def remove(
        self,
        entities: str | Iterable[str],
        *,
        mode: Mode = "keep",
        normalize_output: bool | None = None,
    ) -> "SheafModel":
        r"""Returns a model without some entities and their facts.

        All other vectors stay bit-identical. With ``mode="refine"``, the vectors of entities of
        earlier extensions that lose a fact, and of those connected to them, are recomputed (exactly
        if their system is nonsingular) and scaled according to ``normalize_output``, see
        :meth:`extend`. :attr:`report` lists them in both modes.

        Raises:
            DataError: If a label is unknown, or no trained entity would remain.
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
        r"""Predicts the best tails of :math:`(h, r, ?)`.

        Args:
            head: A label, or one for each query.
            relation: A label for all queries, or one for each.
            k: The number of tails, at most all.
            include_known: Whether to include tails of observed facts; a column ``known`` marks
                them.

        Returns:
            A frame with columns ``head``, ``relation``, ``tail``, ``score`` (higher is better) and
            ``origin`` of the tail; in descending order of the score, equal scores in the order of
            the entities of the model.

        Raises:
            DataError: If a label is unknown; the message suggests similar labels.
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
        r"""Predicts the best heads of :math:`(?, r, t)`; see :meth:`predict_tails`."""
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
        r"""Predicts the best answers to many queries, in their order.

        Queries are grouped by relation internally, so their order does not affect the run time.

        Args:
            queries: Rows ``(head, relation, tail)`` of labels, with None at the open end.
            k: The number of answers per query, at most all.
            include_known: As in :meth:`predict_tails`.
            skip_unknown: Whether queries with unknown labels are skipped with a warning that counts
                them; otherwise they raise an error.
            progress: Whether to show progress on standard error.

        Returns:
            The frame of :meth:`predict_tails`, with the predicted ``head`` or ``tail``.

        Raises:
            DataError: If a query does not have exactly one open end, a label is unknown (the
                message names the query and suggests similar labels), or no query is left.
            ValueError: If ``k`` is not positive.
        """
        return predict_queries(self._state, queries, k, include_known, skip_unknown, progress)

    def score(self, triples: TripleInput, *, skip_unknown: bool = False) -> "pd.DataFrame":
        r"""Scores triples: a frame with ``head``, ``relation``, ``tail``, ``score``, ``ratio`` and
        ``known``.

        The score is that of the trained model; for a model with episodes, the mean of the scores on
        both sides. The ratio is the energy :math:`\| R_t x_t - R_h x_h - b \|^2` divided by its
        mean in training for that relation, as in :meth:`explain`. Scores of different relations
        have different scales; ratios are comparable.

        Args:
            triples: The triples.
            skip_unknown: Whether triples with unknown labels are skipped with a warning that counts
                them; otherwise they raise an error.

        Raises:
            DataError: If a label is unknown (the message suggests similar labels), or no triple is
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

        The filter excludes all other facts of the model, ranked triples and ``known`` triples.

        Args:
            triples: The true triples to rank, without duplicates.
            known: Further true triples; those with unknown labels are counted in ``result.notes``.
            on_unknown_entity: How to treat triples with unknown entities. ``"error"``: raise an
                error. ``"drop"``: drop them and count them in ``result.num_dropped`` and in the
                protocol box. ``"extend"``: first extend the model by ``facts`` and ``features``
                with the defaults of :meth:`extend`, then rank with the extended model; triples with
                an entity that has neither are dropped and counted.
            facts: Observed facts of the unknown entities, for ``"extend"``. Facts that are among
                ``triples`` are excluded from the extension and counted.
            features: Features of the entities, for ``"extend"``, as for :meth:`extend`; those of
                new entities that no triple names are not used.
            progress: Whether to show progress on standard error.
            ranks: The processes that share the ranking, with the same arguments: by entities, or by
                triples if scores depend on the whole graph. Each process returns the complete
                result.

        Raises:
            DataError: If a label is unknown (for entities, under ``"error"``), or no triple or no
                fact is left.
            ValueError: If ``facts`` or ``features`` are given without ``"extend"``, or both are
                missing with it.
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
        r"""Returns the best answers to logical queries.

        By default, interior variables are entities: the truth of an answer is that of its best
        derivation from facts, which have probability one, and links that are predicted by the
        scores of the model, see :class:`~sheafprop.query.EntityScorer`. With ``interior="free"``,
        they are vectors that minimize the energy of the query graph, as in Cobb and Gebhart, and
        facts are not used.

        Args:
            query: A query as text, such as ``"and(via(r1, a), not(via(r2, b)))"`` (see
                :func:`~sheafprop.query.parse_query`), or a :class:`~sheafprop.query.Query`, or
                several of them.
            k: The number of answers, at most all entities.
            interior: ``"entities"``, or ``"free"``, which does not support negation.
            beam: Number of entities kept per interior variable, or ``"all"``, which is exact.
            derivations: Number of derivations per answer. The frame then has one row per link, with
                columns ``derivation`` (from 1 on, the best first), ``derivation_truth``, ``depth``
                (links from there to the answer), ``source``, ``relation``, ``target``, ``link``
                (``"fact"`` or ``"predicted"``; ``"none"`` in the only row of a derivation without
                links, such as that of a given entity), ``link_probability`` and ``negated``
                (whether it lowers the truth of the answer). ``frame.attrs["derivations"]`` has
                nested trees.
            min_probability: Answers of smaller probability are omitted; requires a calibrated
                model, see :meth:`calibrate`.
            explain: For free vertices, whether to return one row per edge, with columns ``edge``
                (the relation) and ``edge_energy``.
            prior: For free vertices, whether to add a prior from the facts of their relations, see
                :class:`~sheafprop.query.InteriorPrior`; improves path queries.

        Returns:
            A frame with columns ``query`` and ``answer``; for entities ``truth`` (of the best
            derivations, assuming independent links), ``probability`` if the model is calibrated,
            and ``certain`` (whether a wider beam cannot change the rank); for free vertices
            ``score`` (the negative root of the energy, weighted over sections; higher is better)
            and ``energy``; ``origin`` of the answer; ``known``, whether it follows from the facts
            alone; and ``interior``. Queries are in their given order, with answers in descending
            order, and equal ones in the order of the entities of the model. Entities of truth zero
            are not answers.

        Raises:
            DataError: If a text is not a query, a label is unknown (the message suggests similar
                labels), the answers of a query are the complement of a set, it has a negation with
                free vertices, or a prior is requested without facts or a probability without
                calibration.
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
        r"""Returns a model whose predictions and answers have probabilities, and a report on their
        calibration.

        Args:
            triples: True triples between entities of the model that are not facts of the model and
                were not used in training, preferably of new entities added by an extension. Facts
                are ignored.
            queries: Queries as in :meth:`answer`. Truths are calibrated per query structure, by the
                answers over facts and these triples. Structures without queries use a common curve.

        Returns:
            The model, whose frames of :meth:`predict`, :meth:`score` and :meth:`answer` have a
            column ``probability``, and the report, which evaluates each half of the entities with
            the calibration of the other half. Predicted links have the probability
            ``min(.999, a * softmax(beta * f))`` over the entities that are not facts already, with
            ``a`` the mean number of answers in the given triples of those entities and relations
            that have any. Other scores (:meth:`with_scores`) are not calibrated.

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
        r"""Returns the energies of the facts of an entity, or of the entities of a triple.

        Args:
            target: The label of an entity, or a triple ``(head, relation, tail)`` of labels, which
                is the first row of the frame.

        Returns:
            A frame with columns ``head``, ``relation``, ``tail``; ``energy``
            :math:`\| R_t x_t - R_h x_h - b \|^2` (weighted over sections), largest first;
            ``ratio``, the energy divided by its mean in training for that relation (above one: the
            fact fits worse than the mean; NaN if the relation fits exactly or has no training
            facts); and ``fact``, whether the triple was observed. An entity that was added with
            features has a last row, with ``"(features)"`` as head and relation: the weighted
            squared distance from their prediction, and its ratio to the mean on held-out training
            entities.

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
