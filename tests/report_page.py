"""A small experiment, and what tests do with its report in the browser."""

from dataclasses import replace

from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.experiments.specs.variant import Variant
from resharpen.models import Minimal
from resharpen.tasks import SetComplement

HOSTILE = "<script>window.hacked = 1"
"""A run's name has no slash, so it cannot end a script; it could begin one."""
VARIANT = "<img src=x onerror='window.hacked=1'>"
DOTS = "#violins .scatterlayer .trace .points path"

CONTRAST = """() => {
  const light = (color) => {
    const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = color.map((x) => linear(x / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    if (!element.checkVisibility() || !hasText(element) || element.textContent === "\\u25a0") continue; // swatches
    if (["SCRIPT", "STYLE", "OPTION"].includes(element.tagName)) continue;
    const style = getComputedStyle(element), own = element instanceof SVGElement ? style.fill : style.color;
    const [more, less] = [parse(own).slice(0, 3), behind(element)].map(light).sort((x, y) => y - x);
    found.push([(more + 0.05) / (less + 0.05), `${element.tagName}: ${element.textContent.slice(0, 40)}`]);
  }
  return found;
}"""
"""Contrast of every visible text with what is behind it, as WCAG defines it."""


def small(name="tiny", **changes) -> Experiment:
    """Two settings and two variants at v = 4."""
    experiment = Experiment(
        name=name,
        settings=tuple(Setting(SetComplement(4), s, Minimal(4, 3, 1, 3)) for s in (1, 2)),
        variants={name: Variant(name) for name in ("pre", "peri")},
        models=16,
        steps=12,
        batch=8,
        checkpoints=3,
        engine="torch",
    )
    return replace(experiment, **changes)


def opened(page, address: str) -> None:
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("html[data-ready]")


def dot(page, number: int) -> tuple[float, float]:
    """Where a dot is on the screen."""
    page.locator("#violins").evaluate("(plot) => plot.scrollIntoView({ behavior: 'instant', block: 'center' })")
    box = page.locator(DOTS).nth(number).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def hovered(page, number: int) -> str:
    """The tip of a dot."""
    page.mouse.move(1, 1)
    page.wait_for_selector("#tip", state="hidden")
    page.mouse.move(*dot(page, number))
    page.wait_for_selector("#tip:not([hidden])")
    return page.locator("#tip").inner_text()


def lines(page) -> int:
    """Models that the parallel coordinates show in front: every line ends with a gap."""
    return page.evaluate(
        "[1, 2].flatMap((k) => document.getElementById('parallel').data[k].x).filter((x) => x === null).length"
    )


def drag_along_axis(page, number: int, start: float, end: float, beside: float = 0.05, sideways: float = 0.0) -> None:
    """Drag from one height of an axis to another, 0 the top, starting `beside` it, 1 at the next axis; `sideways` in
    pixels."""
    page.locator("#parallel").evaluate("(plot) => plot.scrollIntoView({ behavior: 'instant', block: 'center' })")
    x, top, height = page.locator("#parallel").evaluate(
        """(plot, [number, beside]) => {
          const { xaxis, yaxis } = plot._fullLayout, box = plot.getBoundingClientRect();
          const at = number < 0 ? Math.round(xaxis.range[1] + 0.7) + number : number;
          return [box.x + xaxis._offset + xaxis.d2p(at + beside), box.y + yaxis._offset, yaxis._length];
        }""",
        [number, beside],
    )
    page.mouse.move(x, top + height * start)
    page.mouse.down()
    page.mouse.move(x + sideways, top + height * end, steps=4)
    page.mouse.up()
