"""Shortens IRIs to labels such as ``GO:0008150``, and expands them again."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from sheafprop.errors import DataError

_OBO = "http://purl.obolibrary.org/obo/"
# Ontologies of the OBO Foundry. The IRIs of their terms end in NAME_NUMBER.
_OBO_NAMES = (
    *("AAO", "ADO", "ADW", "AEO", "AERO", "AGRO", "AISM", "AMPHX", "APO", "APOLLO_SV", "ARO"),
    *("BCGO", "BCIO", "BCO", "BFO", "BILA", "BSPO", "BTO", "CARO", "CDAO", "CDNO", "CEPH", "CHEBI"),
    *("CHEMINF", "CHIRO", "CHMO", "CIDO", "CIO", "CL", "CLAO", "CLO", "CMO", "COB", "COLAO", "CRO"),
    *("CTENO", "CTO", "CVDO", "DDANAT", "DDPHENO", "DIDEO", "DISDRIV", "DOID", "DPO", "DRON"),
    *("DUO", "ECAO", "ECO", "ECOCORE", "ECTO", "EHDAA2", "EMAPA", "ENVO", "EPIO", "EUPATH", "ExO"),
    *("FAO", "FBbi", "FBbt", "FBcv", "FBdv", "FIDEO", "FIX", "FLOPO", "FMA", "FOBI", "FOODON"),
    *("FOVT", "FYPO", "GAZ", "GECKO", "GENEPIO", "GENO", "GNO", "GO", "HANCESTRO", "HAO", "HP"),
    *("HsapDv", "HSO", "HTN", "IAO", "ICEO", "ICO", "IDO", "IDOMAL", "INO", "LABO", "LEPAO", "MA"),
    *("MAXO", "MCO", "MF", "MFMO", "MFOEM", "MFOMD", "MI", "MIAPA", "MICRO", "MIRO", "MMO"),
    *("MmusDv", "MOD", "MONDO", "MOP", "MP", "MPATH", "MRO", "MS", "NBO", "NCBITaxon", "NCIT"),
    *("NCRO", "NGBO", "NOMEN", "OAE", "OARCS", "OBA", "OBCS", "OBI", "OBIB", "OCCO", "OGG", "OGI"),
    *("OGMS", "OGSF", "OHD", "OHMI", "OHPI", "OMIABIS", "OMIT", "OMO", "OMP", "OMRSE", "ONE"),
    *("ONS", "ONTONEO", "OOSTT", "OPL", "OPMI", "ORNASEQ", "OVAE", "PATO", "PCO", "PDRO", "PECO"),
    *("PHIPO", "PLANA", "PLANP", "PO", "PORO", "PPO", "PR", "PROCO", "PSDO", "PSO", "PW", "RBO"),
    *("REX", "RNAO", "RO", "RXNO", "SEPIO", "SIBO", "SLSO", "SO", "SPD", "STATO", "SYMP", "T4FS"),
    *("TAXRANK", "TGMA", "TO", "TRANS", "TTO", "TXPO", "UBERON", "UO", "UPA", "UPHENO", "VARIO"),
    *("VBO", "VO", "VSAO", "VT", "VTO", "WBbt", "WBls", "WBPhenotype", "XAO", "XCO", "XLMOD"),
    *("XPO", "ZECO", "ZFA", "ZFS", "ZP"),
)
#: The default prefixes.
COMMON = {
    "biolink": "https://w3id.org/biolink/vocab/",
    "dbo": "http://dbpedia.org/ontology/",
    "dbr": "http://dbpedia.org/resource/",
    "dc": "http://purl.org/dc/elements/1.1/",
    "dcterms": "http://purl.org/dc/terms/",
    "foaf": "http://xmlns.com/foaf/0.1/",
    "obo": _OBO,
    "oboInOwl": "http://www.geneontology.org/formats/oboInOwl#",
    "owl": "http://www.w3.org/2002/07/owl#",
    "prov": "http://www.w3.org/ns/prov#",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "schema": "http://schema.org/",
    "skos": "http://www.w3.org/2004/02/skos/core#",
    "wd": "http://www.wikidata.org/entity/",
    "wdt": "http://www.wikidata.org/prop/direct/",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
    **{name: f"{_OBO}{name}_" for name in _OBO_NAMES},
}
#: Namespace of labels that are not IRIs.
_LABEL_IRI = "urn:sheafprop:label:"
#: Labels of IRIs that OBO does not write as prefix and number.
NAMES = {"is_a": f"{COMMON['rdfs']}subClassOf"}
_NAME = re.compile(r"[^\W\d_][\w.-]*")
_PREFIX_LINE = re.compile(r"^\s*@?prefix\s+([\w.-]+):\s*<([^<>\s]*)>\s*\.?\s*$", re.I | re.M)
_CHARACTER = (
    r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2}"
    "|[\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\U00010000-\U0001fffd])"
)
# RFC 3987, without IP addresses in brackets.
_IRI = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:"
    rf"(?://(?:(?!:|@){_CHARACTER})*(?:@(?:(?!:|@){_CHARACTER})*)?(?::[0-9]*)?(?:/(?:{_CHARACTER}|/)*)?"
    rf"|(?!//)(?:{_CHARACTER}|/)*)"
    rf"(?:\?(?:{_CHARACTER}|[/?])*)?(?:#(?:{_CHARACTER}|[/?])*)?"
)


class Prefixes:
    r"""Shortens IRIs to labels and expands them again: ``expand(shorten(iri)) == iri``.

    The longest matching namespace of an IRI is replaced by its prefix and a colon, and
    ``rdfs:subClassOf`` by ``is_a``, as in OBO. Ambiguous IRIs are put in angle brackets. Labels
    that are not IRIs, for example from a TSV file, are percent-encoded with the prefix
    ``urn:sheafprop:label:`` and restored exactly: ``shorten(expand(label)) == label``.

    Args:
        namespaces (mapping): Namespaces by prefix.
        names (mapping, optional): IRIs by label, for labels without a prefix.
    """

    def __init__(self, namespaces: Mapping[str, str], names: Mapping[str, str] | None = None):
        self.namespaces = dict(namespaces)
        self._prefixes = {space: name for name, space in reversed(self.namespaces.items())}
        self._lengths = sorted({len(space) for space in self._prefixes}, reverse=True)
        self._iris = dict(names or {})
        self._names = {iri: name for name, iri in self._iris.items()}

    @classmethod
    def of(cls, given: Any = None) -> "Prefixes":
        """Builds prefixes from an option given in Python, in YAML or on the command line.

        Args:
            given: None or ``"common"`` for the built-in prefixes, ``"none"`` for none, or further
                prefixes as a mapping or a file of JSON (an object or a JSON-LD ``@context``) or of
                ``@prefix`` lines.

        Raises:
            DataError: If the file cannot be read or does not hold prefixes.
        """
        if isinstance(given, Prefixes):
            return given
        if given is None or given == "common":
            return _COMMON_PREFIXES
        if given == "none":
            return cls({})
        source = "'prefixes'"
        if not isinstance(given, Mapping):
            source, given = os.fspath(given), _read(given)
        for name, space in given.items():
            good = isinstance(space, str) and _NAME.fullmatch(str(name))
            if not good or not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", space):
                raise DataError(
                    f"{source}: prefixes must be words with absolute IRIs, such as "
                    f"'ex': 'http://example.org/' (got {name!r}: {space!r})"
                )
        return cls({**COMMON, **given}, NAMES)

    def shorten(self, iri: str) -> str:
        """Returns the label of an IRI."""
        if iri.startswith(_LABEL_IRI):
            try:
                label = unquote(iri.removeprefix(_LABEL_IRI), errors="surrogatepass")
            except UnicodeDecodeError:
                return iri
            return label if self.expand(label) == iri else iri
        if iri in self._names:
            return self._names[iri]
        for length in self._lengths:
            if (name := self._prefixes.get(iri[:length])) is not None:
                return f"{name}:{iri[length:]}"
        return f"<{iri}>" if iri.partition(":")[0] in self.namespaces else iri

    def shorten_label(self, label: str) -> str:
        """Shortens a label that is an IRI, with or without angle brackets."""
        iri = label[1:-1] if label.startswith("<") and label.endswith(">") else label
        is_iri = _IRI.fullmatch(iri) and iri.partition(":")[0] not in self.namespaces
        return self.shorten(iri) if is_iri else label

    def expand(self, label: str) -> str:
        """Returns the IRI of a label."""
        name, colon, rest = label.partition(":")
        iri = self._iris.get(label, label)
        if colon and name in self.namespaces:
            iri = self.namespaces[name] + rest
        elif label.startswith("<") and label.endswith(">"):
            iri = label[1:-1]
        if _IRI.fullmatch(iri) and self.shorten(iri) == label:
            return iri
        return _LABEL_IRI + quote(label, safe="", errors="surrogatepass")


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    source = os.fspath(path)
    try:
        text = Path(path).expanduser().read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: not UTF-8 text ({error})") from error
    if lines := _PREFIX_LINE.findall(text):
        return dict(lines)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{source}: expected a JSON object of prefixes, or '@prefix' lines ({error})"
        ) from error
    value = value.get("@context", value) if isinstance(value, dict) else value
    if not isinstance(value, dict):
        raise DataError(f"{source}: expected a JSON object of prefixes (got {str(value)[:80]})")
    return value


_COMMON_PREFIXES = Prefixes(COMMON, NAMES)
