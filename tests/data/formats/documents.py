"""Documents of every format for facts that are known, for tests of readers."""

import json
import random

#: Words of IRIs, of which labels are made.
WORDS = [*"abcdefg", "x1", "long-name", "caf\u00e9", "p.q", "under_score", "%20"]
SPACE = "http://example.org/"


def draw_facts(rng: random.Random, count: int) -> list[tuple[str, str, str]]:
    """Facts of few labels, some of them loops and cycles."""
    return [
        (rng.choice(WORDS), rng.choice(["is", "part_of", "has"]), rng.choice(WORDS))
        for _ in range(count)
    ]


def as_labels(facts):
    """The labels that RDF gives these facts."""
    return [[SPACE + word for word in fact] for fact in facts]


def ntriples(facts, rng=None):
    lines = []
    for h, r, t in facts:
        lines.append(f"<{SPACE}{h}> <{SPACE}{r}> <{SPACE}{t}> .")
        if rng and rng.random() < 0.3:
            lines.append(
                rng.choice(
                    [
                        "# a comment",
                        "",
                        "   ",
                        f'<{SPACE}{h}> <{SPACE}name> "a \\"b\\" \\u00e9\\n"@en-GB .',
                        f'<{SPACE}{h}> <{SPACE}size> "3"^^<{SPACE}int> . # three',
                        f"_:b1 <{SPACE}{r}> <{SPACE}{t}> .",
                        f"<{SPACE}{h}> <{SPACE}{r}> _:b2 .",
                    ]
                )
            )
    return "\n".join([*lines, ""])


def turtle(facts, rng=None):
    lines = [f"@prefix e: <{SPACE}> .", f"@base <{SPACE}> ."]
    for h, r, t in facts:
        form = rng.randrange(4) if rng else 0
        plain = f"<{h}> <{r}> <{t}>"
        lines.append(
            [
                f"{plain} .",
                f"{plain} ;\n  <name> 'text'@en , 3.5 , true .",
                f"{plain} . [] <{r}> ( <{t}> [ <{r}> <{h}> ] ) .",
                f'{plain} .\n<{h}> <{r}> """long\n"text" \\u00e9""" .  # so',
            ][form]
        )
    return "\n".join([*lines, ""])


def rdfxml(facts, rng=None):
    lines = [
        '<?xml version="1.0"?>',
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"',
        f'  xmlns:e="{SPACE}" xml:base="{SPACE}">',
    ]
    for h, r, t in facts:
        more = rng.choice(["", "<e:size>3 &lt; 4</e:size>", "<!-- so -->"]) if rng else ""
        lines.append(
            f'<rdf:Description rdf:about="{SPACE}{h}"><e:{r} rdf:resource="{SPACE}{t}"/>{more}'
            "</rdf:Description>"
        )
    return "\n".join([*lines, "</rdf:RDF>", ""])


def obo(facts, rng=None):
    lines = ["format-version: 1.4", ""]
    for h, r, t in facts:
        clause = f"is_a: X:{t}" if r == "is" else f"relationship: {r} X:{t}"
        lines += ["[Term]", f"id: X:{h}", f"name: the {h}"]
        if rng and rng.random() < 0.5:
            lines += rng.choice(
                [
                    *(["", "! so"], ["xref: A:1"], ["synonym: broken"], ["comment: c"]),
                    *(["alt_id: A:1"], ["replaced_by: A:2"], [f"alt_id: X:{h}"]),
                ]
            )
            clause += rng.choice([" ! name", ' {source="a b"}', "  "])
        lines += [clause, ""]
    return "\n".join(lines)


def obo_labels(facts):
    return [[f"X:{h}", "is_a" if r == "is" else r, f"X:{t}"] for h, r, t in facts]


def json_lines(facts, rng=None):
    lines = []
    for h, r, t in facts:
        edge = {"id": "e", "subject": h, "predicate": r, "object": t, "publications": ["p"]}
        keys = list(edge)
        if rng:
            rng.shuffle(keys)
            if rng.random() < 0.3:
                lines.append(json.dumps({"id": h, "name": "n", "size": 3, "category": ["A", "B"]}))
        lines.append(json.dumps({key: edge[key] for key in keys}, ensure_ascii=bool(rng)))
    return "\n".join([*lines, ""])


def plain(facts):
    return [list(fact) for fact in facts]


def neo4j_csv(facts, rng=None):
    lines = [":START_ID,weight:float,:TYPE,:END_ID"]
    for h, r, t in facts:
        cells = [h, "0.5", r, t]
        if rng and rng.random() < 0.5:
            cells = [f'"{cell}"' for cell in cells]
        lines.append(",".join(cells))
    return "\n".join([*lines, ""])


#: Format, writer, and the labels that its facts have.
WRITERS = {
    "ntriples": (ntriples, as_labels),
    "turtle": (turtle, as_labels),
    "rdfxml": (rdfxml, as_labels),
    "obo": (obo, obo_labels),
    "jsonl": (json_lines, plain),
    "csv": (neo4j_csv, plain),
}
