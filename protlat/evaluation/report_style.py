"""Looks of the report; everything stands in the page itself."""

from __future__ import annotations

STYLE = """
:root { --ink: #1d2433; --soft: #667085; --line: #e2e6ee; --ground: #f6f7fa; --card: #fff; --ours: #2563c9; --ours-soft: #e8f0fd;
  --base: #98a2b3; --good: #157347; --bad: #b42318; --warn: #8a5a00; --warn-soft: #fff6e0; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 80px; }
h1 { font-size: 27px; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 20px; margin: 0 0 2px; }
h3 { font-size: 15px; margin: 18px 0 6px; }
p { margin: 6px 0; }
a { color: var(--ours); text-decoration: none; }
a:hover { text-decoration: underline; }
.soft { color: var(--soft); }
.small { font-size: 13px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 20px 22px; margin: 18px 0; }
.facts { display: flex; flex-wrap: wrap; gap: 4px 26px; margin: 12px 0 0; padding: 0; list-style: none; font-size: 13px; }
.facts b { font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 2px solid var(--line); padding: 5px 9px; vertical-align: bottom; }
td { border-bottom: 1px solid var(--line); padding: 5px 9px; vertical-align: top; }
td.n, th.n { text-align: right; white-space: nowrap; }
td .range { display: block; font-weight: 400; color: var(--soft); font-size: 11px; }
td.ours, th.ours { background: var(--ours-soft); }
td.best { font-weight: 700; }
td.top { box-shadow: inset 0 -2px 0 var(--base); }
tr:hover td { background: #fafbfd; } tr:hover td.ours { background: #dbe8fc; }
.up { color: var(--good); font-weight: 600; } .down { color: var(--bad); font-weight: 600; } .even { color: var(--soft); font-weight: 600; }
.tag { display: inline-block; border: 1px solid var(--line); border-radius: 99px; padding: 0 9px; font-size: 12px; color: var(--soft); margin-left: 6px; }
ul.warn { background: var(--warn-soft); color: var(--warn); border-radius: 8px; padding: 8px 14px 8px 30px; margin: 10px 0; font-size: 13px; }
ul.note { color: var(--soft); padding-left: 18px; margin: 6px 0; font-size: 13px; }
.error { background: #fdeceb; color: var(--bad); border-radius: 8px; padding: 8px 14px; margin: 10px 0; font-size: 13px; }
.share { display: inline-block; height: 9px; background: var(--base); border-radius: 2px; vertical-align: middle; margin-right: 6px; }
svg { max-width: 100%; height: auto; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--soft); font-size: 13px; }
.key span { margin-right: 18px; }
@media print { body { background: #fff; } section { border: 0; padding: 8px 0; } tr, svg { break-inside: avoid; } }
"""
