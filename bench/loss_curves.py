#!/usr/bin/env python3
"""Draws training losses of several runs against those of a reference as an SVG.

usage: loss_curves.py OUT.svg REFERENCE=a.jsonl,b.jsonl NAME=c.jsonl,d.jsonl ...

Each NAME stands for runs that differ in their seed; the files are their metrics.jsonl. Lines are means over
the runs, averaged over 100 steps. The band holds all runs of the reference.
"""
import json
import sys

WIDTH, HEIGHT, LEFT, TOP, GAP = 760, 420, 60, 24, 46
COLORS = ["#333333", "#d1495b", "#2e86ab", "#3a9d5d", "#8e5ea2", "#e08e2b", "#5f6f7f"]
WINDOW = 100


def losses(path):
    with open(path, encoding="utf-8") as lines:
        return {row["step"]: row["loss"] for row in map(json.loads, lines)}


def smoothed(run):
    steps = sorted(run)
    return {s: mean([run[t] for t in steps if s - WINDOW < t <= s]) for s in steps if s >= WINDOW}


def mean(values):
    return sum(values) / len(values)


def panel(top, height, rows, band, low, high, ticks, unit):
    steps = sorted(band)
    first, last = steps[0], steps[-1]

    def at(step, value):
        x = LEFT + (WIDTH - LEFT - 20) * (step - first) / (last - first)
        return f"{x:.1f},{top + height * (high - min(max(value, low), high)) / (high - low):.1f}"

    out = []
    for tick in ticks:
        y = at(first, tick).split(",")[1]
        out.append(f'<path d="M{LEFT},{y}H{WIDTH - 20}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y}" text-anchor="end" dy="4">{tick:g}{unit}</text>')
    edge = [at(s, band[s][1]) for s in steps] + [at(s, band[s][0]) for s in reversed(steps)]
    out.append(f'<polygon points="{" ".join(edge)}" fill="#bbb" fill-opacity=".45"/>')
    for color, row in zip(COLORS, rows):
        line = " ".join(at(s, row[s]) for s in steps)
        out.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.6"/>')
    for step in range(200, last + 1, 200):
        x = at(step, low).split(",")[0]
        out.append(f'<text x="{x}" y="{top + height + 16}" text-anchor="middle">{step}</text>')
    return out


def main(out, *arguments):
    names, runs = [], []
    for argument in arguments:
        name, files = argument.split("=")
        names.append(name)
        runs.append([smoothed(losses(path)) for path in files.split(",")])
    steps = sorted(runs[0][0])
    means = [{s: mean([run[s] for run in group]) for s in steps} for group in runs]
    band = {s: (min(run[s] for run in runs[0]), max(run[s] for run in runs[0])) for s in steps}
    percent = [{s: 100 * (m[s] / means[0][s] - 1) for s in steps} for m in means]
    spread = {s: tuple(100 * (b / means[0][s] - 1) for b in band[s]) for s in steps}
    half = (HEIGHT - TOP - 2 * GAP) // 2
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>']
    for k, name in enumerate(names):
        x = LEFT + 110 * k
        svg.append(f'<path d="M{x},12h18" stroke="{COLORS[k]}" stroke-width="3"/><text x="{x + 22}" y="16">{name}</text>')
    low, high = int(min(means[0].values())), int(max(means[0].values())) + 1
    svg += panel(TOP, half, means, band, low, high, range(low, high + 1), "")
    svg += panel(TOP + half + GAP, half, percent, spread, -4, 4, range(-4, 5, 2), " %")
    svg.append(f'<text x="{WIDTH - 20}" y="{HEIGHT - 6}" text-anchor="end">steps; above: training loss, '
               "below: its distance from the mean of the first</text></svg>")
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(svg) + "\n")
    for name, group, m in zip(names, runs, means):
        print(name, " ".join(f"{run[steps[-1]]:.4f}" for run in group), f"{100 * (m[steps[-1]] / means[0][steps[-1]] - 1):+.2f} %")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
