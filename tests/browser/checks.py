"""What a page must be for everybody, each check a function that returns faults in words; none of them finds anything in a good page."""

from __future__ import annotations

from typing import Any

from tests.browser.devtools import Tab

CONTRAST = 4.5  # WCAG 2.2, 1.4.3: text against its background
LARGE_CONTRAST = 3.0  # from 24 px, or 18.66 px bold
PRINTED_PX = 717  # A4 less the margins of 1 cm that Chromium leaves, at 96 dots an inch


def complaints(tab: Tab) -> list[str]:
    """Return what the console shows: errors and warnings of the browser, messages and exceptions of scripts."""
    logged = [e["entry"] for e in tab.events("Log.entryAdded")]
    thrown = [e["exceptionDetails"]["text"] for e in tab.events("Runtime.exceptionThrown")]
    said = [str(e["args"]) for e in tab.events("Runtime.consoleAPICalled")]
    return [*(f"{e['level']}: {e['text']}" for e in logged if e["level"] != "verbose"), *thrown, *said]


def requests_made(tab: Tab) -> list[str]:
    """Return the addresses that were asked for beside the page itself; what a page holds inline asks nobody."""
    asked = [e["request"]["url"] for e in tab.events("Network.requestWillBeSent")]
    own = tab.evaluate("document.location.href.split('#')[0]")
    return [url for url in asked if url.split("#", maxsplit=1)[0] != own and not url.startswith("data:")]


def overflow(tab: Tab, width: int) -> list[str]:
    """Return the elements that make the body wider than ``width`` pixels; a table that scrolls inside its own region does not."""
    script = """(width => {
      if (document.documentElement.scrollWidth <= width) return [];
      const scrolls = e => e && e !== document.body && e !== document.documentElement &&
        (['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
      const wide = [...document.body.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > width + 1);
      const named = e => `${e.tagName.toLowerCase()}.${e.className}: ${e.textContent.trim().slice(0, 60)}`;
      return [`${document.documentElement.scrollWidth} px`, ...wide.filter(e => !scrolls(e.parentElement)).slice(0, 9).map(named)];
    })"""
    found: list[str] = tab.evaluate(f"{script}({width})")
    return found


def low_contrast(tab: Tab) -> list[str]:
    """Return the texts that stand out too little from their background, one for each pair of colours."""
    script = """((normal, large) => {
      const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
      const seen = new Map();
      const rgba = text => {
        if (!seen.has(text)) {
          context.clearRect(0, 0, 1, 1); context.fillStyle = text; context.fillRect(0, 0, 1, 1);
          const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data; seen.set(text, [r, g, b, a / 255]);
        }
        return seen.get(text);
      };
      const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
      const behind = e => {
        const own = rgba(getComputedStyle(e).backgroundColor);
        if (own[3] === 1) return own;
        return over(own, e.parentElement ? behind(e.parentElement) : rgba('Canvas'));
      };
      const drawnUnder = e => {  // of a text in a picture: what was drawn before it at its place
        const {x, y, width, height} = e.getBoundingClientRect(), at = [x + width / 2, y + height / 2];
        const holds = s => { const b = s.getBoundingClientRect();
          return b.left <= at[0] && at[0] <= b.right && b.top <= at[1] && at[1] <= b.bottom; };
        const before = [...e.ownerSVGElement.querySelectorAll('rect')].filter(s => getComputedStyle(s).fill !== 'none' && holds(s) &&
          s.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING);
        return before.reduce((below, s) => { const c = rgba(getComputedStyle(s).fill);
          return over([c[0], c[1], c[2], c[3] * getComputedStyle(s).fillOpacity], below); }, behind(e));
      };
      const light = c => { const [r, g, b] = c.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const faults = new Map();
      for (const e of document.querySelectorAll('body, body *')) {
        if (e.closest('[hidden], defs, title, desc')) continue;
        if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
        const style = getComputedStyle(e);
        if (style.visibility === 'hidden' || style.display === 'none') continue;
        const picture = e instanceof SVGElement, back = picture ? drawnUnder(e) : behind(e), drawn = picture ? style.fill : style.color;
        if (drawn === 'none') continue;
        const [a, b] = [light(over(rgba(drawn), back)), light(back)].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05), size = parseFloat(style.fontSize);
        const big = size >= 24 || (size >= 18.66 && style.fontWeight >= 600);
        if (ratio < (big ? large : normal))
          faults.set(`${drawn} on ${back}`, `${ratio.toFixed(2)}: ${drawn} on rgb(${back}): ${e.textContent.trim().slice(0, 40)}`);
      }
      return [...faults.values()];
    })"""
    found: list[str] = tab.evaluate(f"{script}({CONTRAST}, {LARGE_CONTRAST})")
    return found


def untold(tab: Tab) -> list[str]:
    """Return what a screen reader could not tell: missing names, tables without caption or headings, headings out of order."""
    nodes = [n for n in tab.call("Accessibility.getFullAXTree")["nodes"] if not n["ignored"]]
    by_role: dict[str, list[dict[str, Any]]] = {}
    for node in nodes:
        by_role.setdefault(str(node["role"]["value"]), []).append(node)
    nameless = ("RootWebArea", "table", "image", "link", "button", "region", "heading", "DisclosureTriangle")
    faults = [f"{role} without a name" for role in nameless for n in by_role.get(role, []) if not _name(n)]
    if len(by_role.get("main", [])) != 1:
        faults.append(f"{len(by_role.get('main', []))} main landmarks, expected one")
    if not tab.evaluate("document.documentElement.lang"):
        faults.append("no language")
    faults += _heading_faults(by_role.get("heading", []))
    script = """[...document.querySelectorAll('table')].filter(t => !t.querySelector('th[scope]')).map(t => t.caption?.textContent)"""
    faults += [f"table without headings: {caption}" for caption in tab.evaluate(script)]
    faults += ["figure without a caption"] * tab.evaluate(
        "document.querySelectorAll('figure:not(:has(figcaption))').length"
    )
    script = """Object.entries(Object.groupBy([...document.querySelectorAll('[id]')], e => e.id)).filter(([, s]) => s.length > 1)
      .map(([id]) => id)"""
    faults += [f"two elements with the id {name}" for name in tab.evaluate(script)]
    script = """[...document.querySelectorAll('a[href^="#"]')].filter(a => !document.getElementById(decodeURIComponent(a.hash.slice(1))))
      .map(a => a.hash)"""
    return faults + [f"link to {target}, which is nowhere" for target in tab.evaluate(script)]


def _name(node: dict[str, Any]) -> str:
    return str(node.get("name", {}).get("value", "")).strip()


def _heading_faults(headings: list[dict[str, Any]]) -> list[str]:
    levels = [int(next(p["value"]["value"] for p in h["properties"] if p["name"] == "level")) for h in headings]
    names = [_name(h) for h in headings]
    if levels[:1] != [1] or levels.count(1) != 1:
        return [
            f"headings begin with levels {levels[:3]} and hold {levels.count(1)} of level 1; expected one, the first"
        ]
    pairs = zip(levels, levels[1:], names[1:], strict=False)
    return [f"heading of level {low} below one of level {high}: {name}" for high, low, name in pairs if low > high + 1]


def unreached(tab: Tab) -> list[str]:
    """Return what the Tab key does not reach in the order of the page, or shows no focus on, or does not leave again."""
    count = """[...document.querySelectorAll('a[href], button, summary, input, select, [tabindex="0"]')]
      .filter(e => e.checkVisibility() && !e.disabled)"""
    expected = tab.evaluate(f"{count}.length")
    where = f"""(() => {{ const e = document.activeElement, all = {count}; if (!e || e === document.body) return null;
      const s = getComputedStyle(e), ring = s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0;
      return [all.indexOf(e), ring || s.boxShadow !== 'none', (e.ariaLabel || e.textContent).trim().slice(0, 40)]; }})()"""
    tab.evaluate("document.activeElement.blur(), getSelection().removeAllRanges(), scrollTo(0, 0)")
    faults: list[str] = []
    for number in range(expected):
        tab.press("Tab")
        met = tab.evaluate(where)
        if met is None or met[0] != number:
            return [*faults, f"Tab {number + 1} of {expected} leads to {met}"]
        if not met[1]:
            faults.append(f"no focus to be seen on {met[2]!r}")
    tab.press("Tab")
    last = tab.evaluate(where)
    if expected and last is not None and last[0] == expected - 1:
        faults.append(f"Tab does not leave {last[2]!r}")
    return faults


def unprinted(tab: Tab) -> list[str]:
    """Return what paper would not show: contents beyond its edge, and closed parts."""
    tab.call("Emulation.setDeviceMetricsOverride", width=PRINTED_PX, height=1000, deviceScaleFactor=1, mobile=False)
    tab.call("Emulation.setEmulatedMedia", media="print")
    beyond = [f"beyond the paper: {text}" for text in overflow(tab, PRINTED_PX)]
    script = """[...document.querySelectorAll('main *')].filter(e => !e.checkVisibility({contentVisibilityAuto: false}) &&
      e.closest('details:not([open])') && e.textContent.trim()).map(e => e.textContent.trim().slice(0, 40))"""
    closed = [f"closed on paper: {text}" for text in tab.evaluate(script)[:3]]
    clipped = """[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1 &&
      getComputedStyle(e).overflowX !== 'visible').length"""
    return beyond + closed + ([f"{n} tables cut off"] if (n := tab.evaluate(clipped)) else [])
