# SPDX-License-Identifier: Apache-2.0
"""Panels of lines on logarithmic or linear axes, side by side, as SVG."""
import html
import math

WIDTH, HEIGHT = 400, 380
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 40, 118
COLOURS = {
    "before": "#8a8a8a",
    "one": "#1f5fb4",
    "tree": "#c8501e",
    "ranges": "#2a8a57",
     "free": "#8a8a8a"}


class Panel:
    """lines: [(label, colour, dash, [(x, y)])]; marks: [(label, y)] across; points: [(label,
    colour, [(x, y)])]. linear: both axes are; x: what is along the lower one."""

    def __init__(self, title, unit, lines, marks=(), points=(), limit=None, linear=False, x="nodes"):
        self.title, self.unit, self.lines, self.marks, self.points, self.limit = title, unit, lines, marks, points, limit
        self.linear, self.along = linear, x
        every = [p for _, _, _, line in lines for p in line] + \
            [p for _, _, line in points for p in line]
        ys = [y for _, y in every if y > 0] + [y for _, y in marks]
        if linear:
            self.x, self.y = [min(x for x, _ in every), max(x for x, _ in every)], [min(ys), max(ys)]
            return
        self.x = [math.log2(min(x for x, _ in every)), math.log2(max(x for x, _ in every))]
        self.y = [math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))]

    def at(self, x, y):
        if not self.linear:
            x, y = math.log2(x), math.log10(y)
        fx = (x - self.x[0]) / (self.x[1] - self.x[0])
        fy = (y - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + fx * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - fy * (HEIGHT - TOP - BOTTOM)

    def svg(self, left):
        out = [f'<g transform="translate({left} 0)">']
        say = lambda x, y, text, more="": out.append(
            f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(text)}</text>')
        rule = lambda a, b, more: out.append(
            f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" {more}/>')
        say(LEFT, 18, self.title, 'font-weight="bold"')
        say(LEFT, 32, self.unit, 'fill="#555"')
        across, up = self.ticks()
        low, high = across[0], self.x[1] if self.linear else 2 ** self.x[1]
        for y in up:
            rule(self.at(low, y), self.at(high, y), 'stroke="#e4e4e4"')
            say(LEFT - 6, self.at(low, y)[1] + 4, f"{y:.4g}" if self.linear else f"{y:g}",
                'text-anchor="end" fill="#555"')
        for x in across:
            say(self.at(x, up[0])[0], HEIGHT - BOTTOM + 15, f"{x:.4g}" if self.linear else f"{x:g}",
                'text-anchor="middle" fill="#555"')
        say((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 29, self.along, 'text-anchor="middle" fill="#555"')
        if self.limit:
            rule(self.at(self.limit, 10 ** self.y[0]), self.at(self.limit, 10 ** self.y[1]),
                 'stroke="#b0b0b0" stroke-dasharray="2 3"')
            say(self.at(self.limit, 10 ** self.y[1])[0] + 3, TOP + \
                10, f"{self.limit}: the code's limit", 'fill="#777"')
        for label, y in self.marks:
            rule(self.at(low, y), self.at(high, y), 'stroke="#b0b0b0" stroke-dasharray="6 3"')
            say(self.at(low, y)[0] + 4, self.at(low, y)[1] - 4, label, 'fill="#777"')
        for _, colour, dash, line in self.lines:
            path = " ".join("%.1f,%.1f" % self.at(*p) for p in line if p[1] > 0)
            out.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>')
        for _, colour, points in self.points:
            out += ['<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>' %
                (*self.at(*p), colour) for p in points]
        self.legend(out, say, rule)
        return out + ["</g>"]

    def ticks(self):
        if self.linear:
            return [[a[0] + (a[1] - a[0]) * i / 4 for i in range(5)] for a in (self.x, self.y)]
        across = [2 ** self.x[0]]
        while across[-1] * 4 <= 2 ** self.x[1] * 1.001:
            across.append(across[-1] * 4)
        return across, [10 ** e for e in range(self.y[0], self.y[1] + 1)]

    def legend(self, out, say, rule):
        entries = [(l, c, d) for l, c, d, _ in self.lines] + [(l, c, None)
                    for l, c, _ in self.points]
        for i, (label, colour, dash) in enumerate(entries):
            x, y = LEFT - 40 + i % 2 * (WIDTH - LEFT) / 2, HEIGHT - BOTTOM + 50 + i // 2 * 16
            if dash is None:
                out.append(f'<circle cx="{x + 10}" cy="{y - 4}" r="3" fill="{colour}"/>')
            else:
                rule((x, y - 4), (x + 20, y - 4),
                     f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"')
            say(x + 26, y, label)


def write(path, panels, by="make growth"):
    out = [
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(panels)}" height="{HEIGHT}" '
    'font-family="sans-serif" font-size="11">',
    f"<!-- SPDX-License-Identifier: Apache-2.0. Written by `{by}`. -->",
     '<rect width="100%" height="100%" fill="#ffffff"/>']
    for i, panel in enumerate(panels):
        out += panel.svg(i * WIDTH)
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out + ["</svg>"]) + "\n")
