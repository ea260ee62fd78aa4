"""Style sheet of report pages. No font, picture or script is fetched: the page may be mailed, or printed."""

from typing import Final

CSS: Final = """
:root {
  color-scheme: light dark;
  --paper: #fbfbf9; --card: #ffffff; --ink: #1d2327; --soft: #5c666d; --faint: #8a949b; --line: #e3e5e1;
  --sound: #5f9e8f; --sound-soft: #d7e8e3; --error: #c2453d; --error-soft: #f9e4e1; --warning: #c98a1b;
  --warning-soft: #faeed5; --info: #5b7ea6; --info-soft: #e2eaf3; --empty: #ecede9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15191c; --card: #1c2125; --ink: #e4e7e6; --soft: #a3adb2; --faint: #77828a; --line: #2d3439;
    --sound: #6fb3a2; --sound-soft: #22372f; --error: #e2736b; --error-soft: #3d2422; --warning: #dda94a;
    --warning-soft: #3a2f1b; --info: #84a7cf; --info-soft: #212f3f; --empty: #353e44;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
main { max-width: 1120px; margin: 0 auto; padding: 40px 28px 56px; }
.mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .9em; }
h1.mono { font-size: 21px; line-height: 1.3; margin: 4px 0; font-weight: 600; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 40px 0 12px; font-weight: 600; letter-spacing: -.005em; }
h2 small { font-weight: 400; color: var(--soft); font-size: 13.5px; margin-left: 8px; }
p { margin: 0 0 8px; }
.over { font-size: 12px; letter-spacing: .08em; text-transform: uppercase; color: var(--faint); }
.when { color: var(--soft); font-size: 13.5px; }
.verdict {
  display: flex; gap: 18px; align-items: center; margin: 24px 0 20px; padding: 20px 24px; border-radius: 10px;
  background: var(--tone-soft);
}
.verdict .mark { flex: none; width: 40px; height: 40px; border-radius: 50%; background: var(--tone); color: var(--card);
  display: grid; place-items: center; }
.verdict .mark svg { width: 22px; height: 22px; }
.verdict strong { display: block; font-size: 21px; line-height: 1.3; font-weight: 600; }
.verdict span { color: var(--ink); }
.sound { --tone: var(--sound); --tone-soft: var(--sound-soft); }
.error { --tone: var(--error); --tone-soft: var(--error-soft); }
.warning { --tone: var(--warning); --tone-soft: var(--warning-soft); }
.info { --tone: var(--info); --tone-soft: var(--info-soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 0;
  border: 1px solid var(--line); border-radius: 10px; background: var(--card); overflow: hidden; }
.figures div { padding: 14px 18px; border-right: 1px solid var(--line); margin-right: -1px; }
.figures b { display: block; font-size: 20px; font-weight: 600; line-height: 1.35; white-space: nowrap; }
.figures span { color: var(--soft); font-size: 13px; }
.parts { display: grid; grid-template-columns: repeat(5, 1fr); gap: 10px; margin-top: 14px; }
.part { padding: 11px 14px; border: 1px solid var(--line); border-radius: 10px; background: var(--card);
  font-size: 13px; color: var(--soft); }
.part b { display: block; color: var(--ink); font-size: 14px; font-weight: 600; }
.part b::before { content: ""; display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 8px;
  background: var(--tone); }
.map { border: 1px solid var(--line); border-radius: 10px; background: var(--card); padding: 14px 18px; }
.strip { display: grid; grid-template-columns: 178px 1fr 200px; gap: 14px; align-items: center; padding: 4px 0; }
.strip .name { font-size: 12.5px; color: var(--soft); white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.strip .note { font-size: 12.5px; color: var(--soft); text-align: right; white-space: nowrap; }
.strip .note.error, .strip .note.warning { color: var(--tone); }
.strip + .rule { border-top: 1px solid var(--line); margin: 9px 0; }
.strip svg { display: block; width: 100%; height: 18px; border-radius: 3px; }
.cells { display: flex; flex-wrap: wrap; gap: 3px; }
.cells i { width: 16px; height: 16px; border-radius: 3px; background: var(--tone, var(--sound)); }
.cells i.unused { background: var(--empty); }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; margin-top: 10px; font-size: 12.5px; color: var(--soft); }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 6px;
  vertical-align: -1px; }
svg .bg { fill: var(--empty); } svg .ok { fill: var(--sound); } svg .bad { fill: var(--error); }
svg .odd { fill: var(--warning); } svg .gap { fill: var(--card); }
.frame { border: 1px solid var(--line); border-radius: 10px; background: var(--card); overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: 12.5px; padding: 9px 14px; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
td { padding: 8px 14px; vertical-align: top; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; }
td.topic { min-width: 130px; }
table.findings { table-layout: fixed; min-width: 760px; }
table.findings th:first-child { width: 92px; }
td.n, th.n { text-align: right; white-space: nowrap; overflow-wrap: normal; }
td.tight { white-space: nowrap; overflow-wrap: normal; }
td.mono { font-size: 12.5px; line-height: 20px; }
td small { display: block; color: var(--soft); font-size: 12.5px; }
.tag { display: inline-block; padding: 1px 8px; border-radius: 9px; font-size: 12px; line-height: 1.5;
  color: var(--tone); background: var(--tone-soft); white-space: nowrap; }
.remedy { color: var(--soft); }
.none { color: var(--soft); }
footer { margin-top: 44px; padding-top: 14px; border-top: 1px solid var(--line); color: var(--faint);
  font-size: 12.5px; }
@media screen and (max-width: 760px) {
  main { padding: 24px 14px 40px; }
  .parts { grid-template-columns: repeat(2, 1fr); }
  .strip { grid-template-columns: 1fr; gap: 2px; padding: 7px 0; }
  .strip .note { text-align: left; }
}
@media print {
  :root {
    color-scheme: light;
    --paper: #fff; --card: #fff; --ink: #111; --soft: #444; --faint: #666; --line: #ccc;
    --sound: #5f9e8f; --sound-soft: #e4efec; --error: #b03a32; --error-soft: #f7e4e2; --warning: #b47a12;
    --warning-soft: #f6ecd8; --info: #4d6f97; --info-soft: #e6edf4; --empty: #eee;
  }
  @page { margin: 14mm 12mm; }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  h2 { break-after: avoid; margin-top: 22px; }
  .verdict, .figures, .parts, .strip, tr { break-inside: avoid; }
  thead { display: table-header-group; }
  .frame { overflow: visible; }
  table { font-size: 9pt; }
  td, th, td.mono { padding: 4px 7px; font-size: 8.5pt; line-height: 1.4; }
  td small { font-size: 8pt; }
  .figures { grid-template-columns: repeat(6, 1fr); }
  .figures div { padding: 10px 11px; }
  .figures b { font-size: 13pt; }
  .figures span, .part, .strip .note, .strip .name { font-size: 8.5pt; }
  .part { padding: 8px 11px; }
  .part b { font-size: 9.5pt; white-space: nowrap; }
  .strip { grid-template-columns: 146px 1fr 196px; }
  table.findings { min-width: 0; }
  table.findings th:first-child { width: 66px; }
}
"""
