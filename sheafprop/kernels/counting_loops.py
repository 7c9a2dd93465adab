"""Loops compiled by numba that bring triples into rows by counting; imported where they first run.

A start array of ``n + 1`` numbers is a counter, a cursor and the result in turn, so that no other
memory grows with the vertices.
"""

import numpy as np

from sheafprop.kernels.numba_loops import compile_loops

_compiled = compile_loops()
# Rows up to this length are sorted by insertion.
_SHORT = 24


@_compiled
def count_ends(head, tail, num_free, free, known, loops):  # type: ignore[no-untyped-def]
    """Adds to ``start[v + 1]`` what each free vertex receives from free and from known ones, and
    its loops."""
    for e in range(head.size):
        h, t = head[e], tail[e]
        if h == t:
            if h < num_free:
                loops[h + 1] += 1
            continue
        if t < num_free:
            if h < num_free:
                free[t + 1] += 1
            else:
                known[t + 1] += 1
        if h < num_free:
            if t < num_free:
                free[h + 1] += 1
            else:
                known[h + 1] += 1


@_compiled
def begin_rows(start):  # type: ignore[no-untyped-def]
    """Turns counts at ``start[v + 1]`` into the first place of row ``v``; returns their sum."""
    total = 0
    for v in range(start.size - 1):
        count = start[v + 1]
        start[v + 1] = total
        total += count
    return total


@_compiled
def _put(start, src, label, weight, v, u, kind, w):  # type: ignore[no-untyped-def]
    place = start[v + 1]
    start[v + 1] = place + 1
    src[place] = u
    label[place] = kind
    if weight is not None:
        weight[place] = w


@_compiled
def scatter_ends(  # type: ignore[no-untyped-def]
    head, tail, kind, weight, num_free, num_relations, free, known, loops
):
    """Puts every message into its row; ``free``, ``known``, ``loops`` are (start, src, label,
    weight). The cursors end where the rows do, which is where the next ones begin."""
    for e in range(head.size):
        h, t, r = head[e], tail[e], kind[e]
        w = 1.0 if weight is None else weight[e]
        if h == t:
            if h < num_free:
                _put(loops[0], loops[1], loops[2], loops[3], h, h, r, w)
            continue
        if t < num_free:
            if h < num_free:
                _put(free[0], free[1], free[2], free[3], t, h, r, w)
            else:
                _put(known[0], known[1], known[2], known[3], t, h - num_free, r, w)
        if h < num_free:
            if t < num_free:
                _put(free[0], free[1], free[2], free[3], h, t, num_relations + r, w)
            else:
                _put(known[0], known[1], known[2], known[3], h, t - num_free, num_relations + r, w)


@_compiled
def order_rows(start, src, label, weight, num_labels, lo, hi):  # type: ignore[no-untyped-def]
    """Sorts the entries of each row by source, then by label; equal ones keep their order."""
    longest = 0
    for v in range(lo, hi):
        longest = max(longest, start[v + 1] - start[v])
    key = np.empty(longest, np.int64)
    for v in range(lo, hi):
        first, size = start[v], start[v + 1] - start[v]
        for i in range(size):
            key[i] = np.int64(src[first + i]) * num_labels + label[first + i]
        if size <= _SHORT:
            for i in range(1, size):
                k, j = key[i], i
                w = 0.0 if weight is None else weight[first + i]
                while j > 0 and key[j - 1] > k:
                    key[j] = key[j - 1]
                    if weight is not None:
                        weight[first + j] = weight[first + j - 1]
                    j -= 1
                key[j] = k
                if weight is not None:
                    weight[first + j] = w
        elif weight is None:
            key[:size].sort()
        else:
            order = np.argsort(key[:size], kind="mergesort")
            key[:size] = key[:size][order]
            weight[first : first + size] = weight[first : first + size][order]
        for i in range(size):
            src[first + i] = key[i] // num_labels
            label[first + i] = key[i] % num_labels


@_compiled
def drop_repeated(start, src, label, weight):  # type: ignore[no-untyped-def]
    """Keeps the first of neighbouring entries of one source and label, in place."""
    begin = free = 0
    for v in range(start.size - 1):
        row, end = free, start[v + 1]
        for e in range(begin, end):
            if free > row and src[free - 1] == src[e] and label[free - 1] == label[e]:
                continue
            src[free] = src[e]
            label[free] = label[e]
            if weight is not None:
                weight[free] = weight[e]
            free += 1
        begin = end
        start[v + 1] = free
    return free


@_compiled
def longest_run(start, src):  # type: ignore[no-untyped-def]
    """The most neighbouring entries of one row that have the same source."""
    most = 0
    for v in range(start.size - 1):
        run = 0
        for e in range(start[v], start[v + 1]):
            run = run + 1 if e > start[v] and src[e] == src[e - 1] else 1
            most = max(most, run)
    return most


@_compiled
def merge_sources(start, src, value):  # type: ignore[no-untyped-def]
    """Adds up neighbouring entries of one source, in place; returns how many are left."""
    begin = free = 0
    for v in range(start.size - 1):
        row, end = free, start[v + 1]
        for e in range(begin, end):
            if free > row and src[free - 1] == src[e]:
                value[free - 1] += value[e]
            else:
                src[free] = src[e]
                value[free] = value[e]
                free += 1
        begin = end
        start[v + 1] = free
    return free


@_compiled
def gather_ends(free, known, start, label, weight):  # type: ignore[no-untyped-def]
    """Copies the labels (and weights) of both parts into common rows, sorted by label."""
    longest = 0
    for v in range(start.size - 1):
        size = free[0][v + 1] - free[0][v] + known[0][v + 1] - known[0][v]
        start[v + 1] = start[v] + size
        longest = max(longest, size)
    key = np.empty(longest, np.int64)
    for v in range(start.size - 1):
        first, size = start[v], 0
        for part in (free, known):
            for e in range(part[0][v], part[0][v + 1]):
                key[size] = part[1][e]
                if weight is not None:
                    weight[first + size] = part[2][e]
                size += 1
        if weight is None:
            key[:size].sort()
        else:
            order = np.argsort(key[:size], kind="mergesort")
            key[:size] = key[:size][order]
            weight[first : first + size] = weight[first : first + size][order]
        for i in range(size):
            label[first + i] = key[i]


@_compiled
def copy_rows(start, values, index, place, copied, out):  # type: ignore[no-untyped-def]
    """Copies some rows one after another; with a ``place``, values are looked up in it."""
    for i in range(index.size):
        to = copied[i]
        for e in range(start[index[i]], start[index[i] + 1]):
            out[to] = values[e] if place is None else place[values[e]]
            to += 1


@_compiled
def row_sums(start, weight, out):  # type: ignore[no-untyped-def]
    """Adds to ``out[v]`` the weights of each row, or the number of its entries."""
    for v in range(start.size - 1):
        if weight is None:
            out[v] += start[v + 1] - start[v]
        else:
            for e in range(start[v], start[v + 1]):
                out[v] += weight[e]


@_compiled
def reach(known_start, known_src, anchors, start, src, reached):  # type: ignore[no-untyped-def]
    """Marks the rows that entries lead to from anchors, breadth first.

    Sources behind the rows are anchors where they are marked. What leads on from rows that are
    marked is marked already.
    """
    size = start.size - 1
    queue = np.empty(size, np.int64)
    end = 0
    for v in range(size):
        if reached[v]:
            continue
        for e in range(known_start[v], known_start[v + 1]):
            if anchors[known_src[e]]:
                reached[v] = True
                break
        for e in range(start[v], start[v + 1]):
            if src[e] >= size and reached[src[e]]:
                reached[v] = True
                break
        if reached[v]:
            queue[end] = v
            end += 1
    begin = 0
    while begin < end:
        v = queue[begin]
        begin += 1
        for e in range(start[v], start[v + 1]):
            u = src[e]
            if u < size and not reached[u]:
                reached[u] = True
                queue[end] = u
                end += 1
