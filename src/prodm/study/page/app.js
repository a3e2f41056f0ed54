// The reader study: sign in, read the instructions, judge case after case, finish.

import { AnswerQueue, overlay } from "/answers.js";
import { Viewer, listen } from "/viewer.js";

const TYPING_PAUSE_MS = 500;
const SIGN_OUT_WAIT_MS = 2000;
const ZOOM_STEP = 1.25;
const HU_STEP = 20;
const PAN_STEP_MM = 3;
const SCORES = [1, 2, 3, 4, 5];
const TOKEN = /^([a-z0-9]{5}-){4}[a-z0-9]{5}$/i;

const find = (id) => document.getElementById(id);
const screens = ["sign-in", "instructions", "reading", "done"];
const view = { slice: 0, width: 400, level: 40, zoom: 1, panX: 0, panY: 0 };
const loaded = new Map(); // reading id -> promise of its images

let token = sessionStorage.getItem("prodm-token");
let session = null;
let current = null; // the case on screen, with its answers
let index = 0;
let needsToken = false;
let viewers = [];
let tool = matchMedia("(pointer: coarse)").matches ? "scroll" : "window";

// ---- talking to the server

async function request(method, url, content) {
  const response = await fetch(url, {
    method,
    headers: {
      ...(token && { Authorization: `Bearer ${token}` }),
      ...(content && { "Content-Type": "application/json" }),
    },
    body: content && JSON.stringify(content),
  });
  return { status: response.status, body: await response.json() };
}

async function fetchImages(reading) {
  if (!loaded.has(reading.id)) {
    const fetched = Promise.all(reading.images.map(async (id) => {
      const response = await fetch(`/api/image/${id}`, { headers: { Authorization: `Bearer ${token}` } });
      if (!response.ok) throw new Error("image");
      return new Int16Array(await response.arrayBuffer());
    }));
    loaded.set(reading.id, fetched);
    fetched.catch(() => loaded.delete(reading.id));
    if (loaded.size > 4) loaded.delete(loaded.keys().next().value);
  }
  return loaded.get(reading.id);
}

const queue = new AnswerQueue(request, {
  waiting(count, offline) {
    if (offline) saveState("The server does not answer. Your answers are kept here and sent when it does.", "offline");
    else saveState("Saving", "busy");
  },
  saved(caseId, answers, left) {
    const entry = session.cases.find((one) => one.id === caseId);
    if (entry && !queue.unsaved(caseId).length) {
      entry.state = answers.state;
      if (current?.id === caseId) showAnswers(Object.assign(current, answers));
    }
    showProgress();
    if (left === 0) saveState("Saved", "saved");
  },
  stale(caseId, answers) {
    if (current?.id === caseId) {
      Object.assign(current, answers);
      showAnswers();
    }
    session.cases.find((one) => one.id === caseId).state = answers.state;
    showProgress();
    saveState("", "");
    notice("This case was changed in another window. Its latest answers are shown now; please repeat your last click if you still want it.");
  },
  refused(caseId, sentence) {
    saveState("", "");
    notice(sentence);
    openSession();
  },
  signedOut() { signOut("Please sign in again."); },
});

// ---- screens

function show(name) {
  for (const id of screens) find(id).hidden = id !== name;
  find("bar").hidden = name === "sign-in";
  for (const id of ["open-overview", "open-definitions"]) find(id).hidden = name !== "reading";
  document.querySelector(".bar-progress").hidden = name !== "reading";
}

function notice(sentence) {
  find("notice-text").textContent = sentence;
  find("notice").hidden = !sentence;
}

function saveState(text, kind) {
  const element = find("save-state");
  if (element.textContent !== text) element.textContent = text;
  element.dataset.kind = kind;
}

async function showSignIn(error = "") {
  const { body } = await request("GET", "/api/study");
  setTitle(body.title);
  needsToken = body.needs_token;
  find("who-label").textContent = body.needs_token ? "Your token" : "Your name or token";
  find("known-readers").replaceChildren(...body.readers.map((name) => element("option", { value: name })));
  find("sign-in-error").textContent = error;
  show("sign-in");
  find("who").focus();
}

async function signIn(who) {
  const answer = await request("POST", "/api/open", needsToken || TOKEN.test(who) ? { token: who } : { name: who });
  if (answer.status !== 200) {
    find("sign-in-error").textContent = answer.body.error;
    find("who").select();
    return;
  }
  token = answer.body.token;
  sessionStorage.setItem("prodm-token", token);
  await openSession();
}

function signOut(error = "") {
  queue.stop();
  token = null;
  session = null;
  current = null;
  loaded.clear();
  sessionStorage.removeItem("prodm-token");
  sessionStorage.removeItem("prodm-case");
  closeDialogs();
  notice("");
  saveState("", "");
  return showSignIn(error);
}

async function openSession() {
  const { status, body } = await request("GET", "/api/session");
  if (status !== 200) {
    await signOut();
    return;
  }
  session = body;
  setTitle(session.title);
  find("reader-name").textContent = session.reader;
  if (session.finished) {
    show("done");
    return;
  }
  buildPage();
  queue.restore(session.cases.map((one) => one.id));
  if (session.cases.every((one) => one.state === "empty")) {
    show("instructions");
    find("start").focus();
    return;
  }
  await startReading();
}

async function startReading() {
  const remembered = session.cases.findIndex((one) => one.id === sessionStorage.getItem("prodm-case"));
  const firstOpen = session.cases.findIndex((one) => one.state !== "complete");
  show("reading");
  await openCase(remembered >= 0 ? remembered : Math.max(0, firstOpen));
}

async function openCase(wanted) {
  queue.flush();
  index = wanted;
  const id = session.cases[index].id;
  sessionStorage.setItem("prodm-case", id);
  find("reading").setAttribute("aria-busy", "true");
  let reading;
  let images;
  try {
    do { // again, where an answer was confirmed while the case was on its way
      const { status, body } = await request("GET", `/api/case/${id}`);
      if (status !== 200) throw new Error("case");
      reading = body;
      images = await fetchImages(reading);
    } while (reading.version < queue.version(id));
  } catch {
    if (id === session?.cases[index].id) {
      saveState("The server does not answer. Trying again.", "offline");
      setTimeout(() => { if (session?.cases[index].id === id) openCase(index); }, 1000);
    }
    return;
  }
  if (id !== session?.cases[index].id) return; // the reader has moved on
  if (find("save-state").dataset.kind === "offline" && !queue.pending.size) saveState("", "");
  queue.seen(id, reading.version);
  current = overlay(reading, queue.unsaved(id));
  Object.assign(view, { slice: Math.floor(reading.shape[0] / 2), zoom: 1, panX: 0, panY: 0 });
  find("slice").max = reading.shape[0];
  viewers.forEach((viewer, slot) => viewer.show(images[slot], reading.shape, reading.spacing_mm, view));
  showView();
  showAnswers();
  showProgress();
  find("reading").removeAttribute("aria-busy");
  scrollTo(0, 0);
  (nextOpenQuestion() ?? questions()[0]).focus({ preventScroll: true });
  const following = session.cases[index + 1];
  if (following) {
    request("GET", `/api/case/${following.id}`).then(({ status, body }) => {
      if (status === 200) fetchImages(body);
    }).catch(() => {});
  }
}

// ---- building the page

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && !name.startsWith("aria")) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function setTitle(title) {
  document.title = title;
  for (const place of document.querySelectorAll(".study-title")) place.textContent = title;
}

function buildPage() {
  const labels = Array.from({ length: session.num_methods }, (_, slot) => `M${slot + 1}`);
  document.body.dataset.methods = session.num_methods;
  document.documentElement.style.setProperty("--methods", session.num_methods);
  for (const place of document.querySelectorAll(".instruction-text")) {
    place.replaceChildren(find("instruction-template").content.cloneNode(true));
    place.querySelector(".method-count").textContent = session.num_methods;
    place.querySelector(".method-labels").textContent = labels.join(", ");
  }
  find("instructions").querySelector(".instruction-text").append(...definitionTables());
  document.querySelector(".definition-tables").replaceChildren(...definitionTables());

  viewers = [];
  find("methods").replaceChildren(...labels.map((label, slot) => {
    const canvas = element("canvas", { role: "img", "aria-label": label });
    const viewer = new Viewer(canvas, label);
    viewers.push(viewer);
    listen(canvas, viewer, () => tool, actions);
    const groups = session.criteria.map((criterion) => question({
      field: `rating/${slot}/${criterion.name}`,
      title: criterion.title,
      label: `${label} ${criterion.title}`,
      choices: SCORES,
      describe: (score) => `${label}, ${criterion.title} ${score}: ${criterion.definitions[score - 1]}`,
    }));
    return element("article", { className: "method", "aria-label": label },
      element("div", { className: "image" }, canvas, element("h2", {}, label)),
      element("div", { className: "ratings" }, ...groups));
  }));
  find("ranks").replaceChildren(...labels.map((label, slot) => question({
    field: `rank/${slot}`,
    title: `Rank of ${label}`,
    label: `Rank of ${label}, 1 is best`,
    choices: labels.map((_, place) => place + 1),
    describe: (place) => `Rank of ${label}: ${place}${place === 1 ? " (best)" : place === labels.length ? " (last)" : ""}`,
  })));
  find("presets").replaceChildren(...session.window_presets.map((preset) => {
    const button = element("button", { type: "button", tabIndex: -1, title: `W ${preset.width} L ${preset.level}` }, preset.name);
    button.addEventListener("click", () => setWindow(preset));
    return button;
  }));
  setWindow(session.window_presets[0]);
  showTool();
}

function definitionTables() {
  return session.criteria.map((criterion) => element("table", { className: "definitions" },
    element("caption", {}, criterion.title),
    element("tbody", {}, ...criterion.definitions.map((text, n) => element("tr", {},
      element("th", { scope: "row" }, String(n + 1)), element("td", {}, text))))));
}

// A row of buttons of which one can be chosen. Arrows move, digits and space choose.
function question({ field, title, label, choices, describe }) {
  const group = element("div", { className: "question", role: "radiogroup", "aria-label": label });
  group.dataset.field = field;
  const buttons = choices.map((choice, n) => {
    const button = element("button", {
      type: "button", role: "radio", "aria-checked": "false", tabIndex: n === 0 ? 0 : -1,
      "aria-label": describe(choice), title: describe(choice),
    }, String(choice));
    button.dataset.choice = choice;
    button.addEventListener("click", () => answer(field, choice));
    button.addEventListener("focus", () => { find("definition").textContent = describe(choice); });
    button.addEventListener("pointerenter", () => { find("definition").textContent = describe(choice); });
    return button;
  });
  group.append(element("span", { className: "question-title", "aria-hidden": "true" }, title),
    element("span", { className: "choices" }, ...buttons));
  return group;
}

// ---- answers

const questions = () => [...document.querySelectorAll(".question")].map(entry);
const entry = (group) => group.querySelector('[tabindex="0"]') ?? group.querySelector("[role=radio]");

function given(field) {
  const [kind, slot, criterion] = field.split("/");
  return kind === "rating" ? current.ratings[slot][criterion] : current.ranking[slot];
}

function nextOpenQuestion() {
  const group = [...document.querySelectorAll(".question")].find((one) => given(one.dataset.field) === null);
  return group && entry(group);
}

function answer(field, choice) {
  if (!current) return;
  notice("");
  const [kind, slot, criterion] = field.split("/");
  if (kind === "rating") {
    current.ratings[slot][criterion] = choice;
    queue.put(current.id, field, choice);
  } else {
    // A place belongs to one method: whoever had it gets the place that became free.
    const ranking = [...current.ranking];
    const other = ranking.indexOf(choice);
    if (other >= 0) ranking[other] = ranking[slot];
    ranking[slot] = choice;
    current.ranking = ranking;
    queue.put(current.id, "ranking", ranking);
  }
  showAnswers();
}

function showAnswers() {
  for (const group of document.querySelectorAll(".question")) {
    const value = given(group.dataset.field);
    group.classList.toggle("answered", value !== null);
    const buttons = [...group.querySelectorAll("[role=radio]")];
    const stop = buttons.includes(document.activeElement) ? document.activeElement
      : buttons.find((button) => Number(button.dataset.choice) === value) ?? buttons[0];
    for (const button of buttons) {
      button.setAttribute("aria-checked", String(Number(button.dataset.choice) === value));
      button.tabIndex = button === stop ? 0 : -1;
    }
  }
  if (find("comment").value !== current.comment) find("comment").value = current.comment;
  const last = index === session.cases.length - 1;
  find("next").textContent = last ? "Overview and finish" : "Next case";
  find("previous").disabled = index === 0;
}

function showProgress() {
  const complete = session.cases.filter((one) => one.state === "complete").length;
  find("position").textContent = `Case ${index + 1} of ${session.cases.length}`;
  find("progress").max = session.cases.length;
  find("progress").value = complete;
  find("progress-text").textContent = `${complete} complete`;
  find("overview-text").textContent = `${complete} of ${session.cases.length} cases are complete.`;
  find("case-list").replaceChildren(...session.cases.map((one, n) => {
    const button = element("button", { type: "button", className: one.state, "aria-label": `Case ${n + 1}, ${one.state}` }, String(n + 1));
    if (n === index) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => { closeDialogs(); openCase(n); });
    return button;
  }));
  const ready = complete === session.cases.length;
  find("finish-sure").disabled = !ready;
  find("finish").disabled = !(ready && find("finish-sure").checked);
}

async function finish() {
  await queue.flush();
  if (queue.pending.size) return;
  const { status, body } = await request("POST", "/api/finish", {});
  closeDialogs();
  if (status === 200) {
    saveState("", "");
    show("done");
  } else notice(body.error);
}

function step(by) {
  const wanted = index + by;
  if (wanted < 0) return;
  if (wanted >= session.cases.length) openDialog("overview");
  else openCase(wanted);
}

// ---- the view, shared by all images

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

const actions = {
  scroll(by) { setSlice(view.slice + by); },
  zoom(factor) { view.zoom = clamp(view.zoom * factor, 0.5, 12); showView(); },
  pan(dx, dy) { view.panX += dx; view.panY += dy; showView(); },
  window(dWidth, dLevel) { setWindow({ width: view.width + dWidth, level: view.level + dLevel }); },
};

function setSlice(wanted) {
  if (!current) return;
  view.slice = clamp(wanted, 0, current.shape[0] - 1);
  showView();
}

function setWindow({ width, level }) {
  view.width = Math.round(clamp(width, 1, 4000));
  view.level = Math.round(clamp(level, -1200, 3000));
  showView();
}

function resetView() {
  Object.assign(view, { zoom: 1, panX: 0, panY: 0 });
  showView();
}

let drawing = false;

function showView() {
  find("slice").value = view.slice + 1;
  find("slice-value").textContent = current ? `${view.slice + 1} / ${current.shape[0]}` : "";
  find("width-value").textContent = view.width;
  find("level-value").textContent = view.level;
  find("zoom-value").textContent = `${Math.round(view.zoom * 100)} %`;
  session.window_presets.forEach((preset, n) => {
    const chosen = preset.width === view.width && preset.level === view.level;
    find("presets").children[n].setAttribute("aria-pressed", String(chosen));
  });
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    for (const viewer of viewers) viewer.draw();
  });
}

function showTool() {
  for (const button of find("drag-tools").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.dataset.tool === tool));
  }
}

function nextPreset() {
  const presets = session.window_presets;
  const now = presets.findIndex(({ width, level }) => width === view.width && level === view.level);
  setWindow(presets[(now + 1) % presets.length]);
}

// ---- keyboard

const keys = {
  ArrowUp: () => setSlice(view.slice - 1),
  ArrowDown: () => setSlice(view.slice + 1),
  Home: () => setSlice(0),
  End: () => setSlice(Infinity),
  w: nextPreset,
  "[": () => setWindow({ width: view.width, level: view.level - HU_STEP }),
  "]": () => setWindow({ width: view.width, level: view.level + HU_STEP }),
  ",": () => setWindow({ width: view.width - HU_STEP, level: view.level }),
  ".": () => setWindow({ width: view.width + HU_STEP, level: view.level }),
  "+": () => actions.zoom(ZOOM_STEP),
  "=": () => actions.zoom(ZOOM_STEP),
  "-": () => actions.zoom(1 / ZOOM_STEP),
  0: resetView,
  n: () => step(1),
  p: () => step(-1),
  c: () => find("comment").focus(),
  o: () => openDialog("overview"),
  d: () => openDialog("definitions"),
  "?": () => openDialog("help"),
};

const pans = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

function onKey(event) {
  if (find("reading").hidden || document.querySelector("dialog[open]")) return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const target = document.activeElement;
  if (target === find("comment")) {
    if (event.key === "Escape") (nextOpenQuestion() ?? find("next")).focus();
    return;
  }
  const group = target.closest?.(".question");
  let handled = true;
  if (event.shiftKey && pans[event.key]) {
    const [x, y] = pans[event.key];
    actions.pan(x * PAN_STEP_MM, y * PAN_STEP_MM);
  } else if (/^[1-9]$/.test(event.key)) {
    handled = Boolean(group) && chooseByDigit(group, Number(event.key));
  } else if (group && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
    moveWithin(group, target, event.key === "ArrowRight" ? 1 : -1);
  } else if (event.key === "Enter" && (group || target === document.body)) {
    step(1);
  } else if (keys[event.key]) {
    keys[event.key]();
  } else handled = false;
  if (handled) event.preventDefault();
}

function chooseByDigit(group, digit) {
  const button = group.querySelector(`[data-choice="${digit}"]`);
  if (!button) return false;
  button.click();
  const groups = [...document.querySelectorAll(".question")];
  const following = groups[groups.indexOf(group) + 1];
  (following ? entry(following) : find("next")).focus();
  return true;
}

function moveWithin(group, target, by) {
  const buttons = [...group.querySelectorAll("[role=radio]")];
  const wanted = buttons[clamp(buttons.indexOf(target) + by, 0, buttons.length - 1)];
  for (const button of buttons) button.tabIndex = button === wanted ? 0 : -1;
  wanted.focus();
}

// ---- dialogs, theme, start

function openDialog(id) {
  closeDialogs();
  if (session) showProgress();
  find(id).showModal();
}

function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(dark ? "light" : "dark");
  localStorage.setItem("prodm-theme", dark ? "light" : "dark");
}

function wire() {
  find("sign-in-form").addEventListener("submit", (event) => {
    event.preventDefault();
    signIn(find("who").value.trim()).catch(() => {
      find("sign-in-error").textContent = "The server does not answer.";
    });
  });
  find("start").addEventListener("click", startReading);
  find("previous").addEventListener("click", () => step(-1));
  find("next").addEventListener("click", () => step(1));
  find("comment").addEventListener("input", () => {
    current.comment = find("comment").value;
    queue.put(current.id, "comment", current.comment, TYPING_PAUSE_MS);
  });
  find("comment").addEventListener("blur", () => queue.flush());
  find("slice").addEventListener("input", () => setSlice(Number(find("slice").value) - 1));
  find("zoom-in").addEventListener("click", () => actions.zoom(ZOOM_STEP));
  find("zoom-out").addEventListener("click", () => actions.zoom(1 / ZOOM_STEP));
  find("reset-view").addEventListener("click", resetView);
  for (const button of find("drag-tools").querySelectorAll("button")) {
    button.addEventListener("click", () => { tool = button.dataset.tool; showTool(); });
  }
  for (const id of ["overview", "definitions", "help"]) {
    find(`open-${id}`).addEventListener("click", () => openDialog(id));
  }
  for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", closeDialogs);
  find("finish-sure").addEventListener("change", showProgress);
  find("finish").addEventListener("click", finish);
  find("sign-out").addEventListener("click", async () => {
    await Promise.race([queue.flush(), new Promise((resolve) => setTimeout(resolve, SIGN_OUT_WAIT_MS))]);
    await signOut();
  });
  find("notice-close").addEventListener("click", () => notice(""));
  for (const button of document.querySelectorAll(".theme")) button.addEventListener("click", switchTheme);
  document.addEventListener("keydown", onKey);
  addEventListener("pagehide", () => queue.flush());
}

async function start() {
  wire();
  setTheme(localStorage.getItem("prodm-theme"));
  const link = new URLSearchParams(location.hash.slice(1)).get("token");
  if (link) {
    history.replaceState(null, "", location.pathname); // keep the token out of sight
    await showSignIn();
    await signIn(link);
  } else if (token) await openSession();
  else await showSignIn();
}

start().catch(() => {
  show("sign-in");
  find("sign-in-error").textContent = "The server does not answer. Reload the page when it runs again.";
});
