// Keeps a page of `sluice ui` up to date: replaces the parts that the server sends, and counts durations.
"use strict";

const script = document.currentScript;
const clockOffset = Number(script.dataset.now) - Date.now() / 1000;
const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

function duration(seconds) {
  for (let index = 0; index < UNITS.length - 1; index++) {
    const [unit, length] = UNITS[index], [nextUnit, nextLength] = UNITS[index + 1];
    if (seconds >= length) {
      return `${Math.floor(seconds / length)} ${unit} ${Math.floor((seconds % length) / nextLength)} ${nextUnit}`;
    }
  }
  return `${Math.floor(seconds)} s`;
}

function countDurations() {
  const now = Date.now() / 1000 + clockOffset;
  for (const element of document.querySelectorAll("time[data-since]")) {
    const text = duration(Math.max(0, now - Number(element.dataset.since)));
    if (element.textContent !== text) element.textContent = text;
  }
}

function filterTables() {
  const text = (document.getElementById("filter")?.value ?? "").toLowerCase();
  for (const row of document.querySelectorAll("table.tables tbody tr")) {
    row.classList.toggle("hidden", !row.cells[0].textContent.toLowerCase().includes(text));
  }
}

// What a reader has done to a part survives its replacement: focus, text, open lists, scrolled tables.
function replacePart(id, html) {
  const old = document.getElementById(id);
  if (old === null) return;
  const template = document.createElement("template");
  template.innerHTML = html;
  const part = template.content.firstElementChild;
  const focus = old.contains(document.activeElement) ? document.activeElement : null;
  for (const details of old.querySelectorAll("details[open]")) {
    const same = part.querySelector(`#${CSS.escape(details.id)}`);
    if (same !== null) same.open = true;
  }
  const input = old.querySelector("input");
  const newInput = part.querySelector("input");
  if (input !== null && newInput !== null) newInput.value = input.value;
  const scrolled = [...old.querySelectorAll(".scroll")].map(element => element.scrollLeft);
  old.replaceWith(part);
  [...part.querySelectorAll(".scroll")].forEach((element, index) => { element.scrollLeft = scrolled[index] ?? 0; });
  if (focus === null) return;
  const href = focus.getAttribute("href");
  const same = href === null ? focus.id && document.getElementById(focus.id)
    : [...part.querySelectorAll("a")].find(link => link.getAttribute("href") === href);
  if (same) {
    same.focus({ preventScroll: true });
    if (same.setSelectionRange && focus.selectionStart !== null) {
      same.setSelectionRange(focus.selectionStart, focus.selectionEnd);
    }
  }
}

function showConnection(problem) {
  const counts = document.getElementById("counts");
  document.body.classList.toggle("disconnected", problem !== null);
  if (problem !== null && counts !== null) counts.textContent = problem;
}

const NO_ANSWER = "sluice ui does not answer; trying again…";

// An event source does not show the answer with which it was refused.
async function showRefusal() {
  const controller = new AbortController();
  try {
    const answer = await fetch(script.dataset.live, { signal: controller.signal });
    const isText = answer.headers.get("content-type")?.startsWith("text/plain");
    const text = isText ? (await answer.text()).trim() : `${NO_ANSWER} (status ${answer.status})`;
    if (!answer.ok && source === null) showConnection(text);
  } catch {
    // The server has ended in the meantime.
  } finally {
    controller.abort();
  }
}

// A browser allows six connections to a server, so a page that nobody sees has none.
let source = null;

function follow() {
  if (document.hidden) {
    source?.close();
    source = null;
  } else if (source === null) {
    source = new EventSource(script.dataset.live);
    source.onmessage = event => {
      document.body.classList.remove("disconnected");
      for (const [id, html] of Object.entries(JSON.parse(event.data))) replacePart(id, html);
      filterTables();
      countDurations();
    };
    // The browser connects again by itself, except after an answer with an error.
    source.onerror = () => {
      showConnection(NO_ANSWER);
      if (source.readyState === EventSource.CLOSED) {
        source = null;
        showRefusal().then(() => setTimeout(follow, 3000));
      }
    };
  }
}

document.addEventListener("input", event => { if (event.target.id === "filter") filterTables(); });
document.addEventListener("keydown", event => {
  const filter = document.getElementById("filter");
  if (filter === null) return;
  if (event.key === "/" && document.activeElement !== filter) {
    event.preventDefault();
    filter.focus();
  } else if (event.key === "Escape" && document.activeElement === filter) {
    filter.value = "";
    filterTables();
    filter.blur();
  }
});
document.addEventListener("visibilitychange", follow);
setInterval(countDurations, 1000);
countDurations();
filterTables();
follow();
