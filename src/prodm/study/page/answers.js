// Answers on their way to the disk. Each change is kept in the browser's storage until the
// server has confirmed it, so a reload, a crash or a server that is down loses nothing.
//
// A change sets one field of one case ("rating/0/vessel_fidelity", "ranking", "comment") and
// names the version of the case that it was made on. Where another window was quicker, the
// server refuses it (409) and sends the present answers, which the page then shows.

const PREFIX = "prodm-unsaved/";
const RETRY_MS = 1000;

export class AnswerQueue {
  constructor(request, events) {
    this.request = request;
    this.events = events; // saved, stale, refused, waiting, signedOut
    this.pending = new Map();
    this.versions = new Map();
    this.delayed = new Map();
    this.running = null; // the promise of a delivery under way
  }

  // Take up what an earlier page of the same reader could not deliver.
  restore(caseIds) {
    const mine = new Set(caseIds);
    for (let n = 0; n < localStorage.length; n += 1) {
      const key = localStorage.key(n);
      if (!key.startsWith(PREFIX)) continue;
      const change = JSON.parse(localStorage.getItem(key));
      if (mine.has(change.caseId)) this.pending.set(key, change);
    }
    return this.run();
  }

  seen(caseId, version) {
    this.versions.set(caseId, Math.max(version, this.version(caseId)));
  }

  version(caseId) {
    return this.versions.get(caseId) ?? 0;
  }

  // The changes of a case that the server has not confirmed yet.
  unsaved(caseId) {
    return [...this.pending.values()].filter((change) => change.caseId === caseId);
  }

  put(caseId, field, value, delayMs = 0) {
    const key = `${PREFIX}${caseId}/${field}`;
    const change = { caseId, field, value };
    this.pending.set(key, change);
    try {
      localStorage.setItem(key, JSON.stringify(change));
    } catch {
      // Storage is full or forbidden: the change still goes to the server.
    }
    this.events.waiting(this.pending.size, false);
    clearTimeout(this.delayed.get(key));
    this.delayed.delete(key);
    if (delayMs === 0) return this.run();
    this.delayed.set(key, setTimeout(() => { this.delayed.delete(key); this.run(); }, delayMs));
    return undefined;
  }

  // Send what waits for a pause in typing right away.
  flush() {
    for (const timer of this.delayed.values()) clearTimeout(timer);
    this.delayed.clear();
    return this.run();
  }

  // Deliver one change after the other; ends when none is left.
  run() {
    this.running ??= this.deliverAll().finally(() => { this.running = null; });
    return this.running;
  }

  async deliverAll() {
    for (;;) {
      const next = [...this.pending].find(([key]) => !this.delayed.has(key));
      if (!next) return;
      await this.deliver(...next);
    }
  }

  // Forget the reader; what was not delivered stays in storage for their next sign-in.
  stop() {
    for (const timer of this.delayed.values()) clearTimeout(timer);
    this.delayed.clear();
    this.pending.clear();
  }

  async deliver(key, change) {
    let response;
    try {
      if (!this.versions.has(change.caseId)) {
        const known = await this.request("GET", `/api/case/${change.caseId}`);
        if (known.status === 200) this.seen(change.caseId, known.body.version);
      }
      response = await this.request("PUT", `/api/case/${change.caseId}`, {
        version: this.version(change.caseId),
        ...body(change),
      });
    } catch {
      response = { status: 0 };
    }
    if (!this.pending.has(key)) return; // signed out meanwhile
    if (response.status === 0 || response.status >= 500) {
      this.events.waiting(this.pending.size, true);
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      return;
    }
    if (response.status === 401) {
      this.stop();
      this.events.signedOut();
      return;
    }
    const answers = response.body;
    if (response.status === 200 || (response.status === 409 && holds(answers, change))) {
      this.seen(change.caseId, answers.version);
      this.drop(key, change);
      this.events.saved(change.caseId, answers, this.pending.size);
      return;
    }
    for (const [other, waiting] of [...this.pending]) {
      if (waiting.caseId === change.caseId) this.drop(other, waiting);
    }
    if (response.status === 409) {
      this.seen(change.caseId, answers.version);
      this.events.stale(change.caseId, answers);
    } else {
      this.events.refused(change.caseId, answers?.error ?? "The answer was refused.");
    }
  }

  drop(key, change) {
    if (this.pending.get(key) !== change) return; // changed again meanwhile
    this.pending.delete(key);
    localStorage.removeItem(key);
  }
}

function body({ field, value }) {
  const [kind, slot, criterion] = field.split("/");
  if (kind === "rating") return { rating: { slot: Number(slot), criterion, score: value } };
  return { [kind]: value };
}

// Whether the answers already say what the change wanted, as after a lost confirmation.
function holds(answers, { field, value }) {
  const [kind, slot, criterion] = field.split("/");
  const present = kind === "rating" ? answers.ratings[slot]?.[criterion] : answers[kind];
  return JSON.stringify(present) === JSON.stringify(value);
}

// Lay unconfirmed changes over answers from the server.
export function overlay(answers, changes) {
  for (const { field, value } of changes) {
    const [kind, slot, criterion] = field.split("/");
    if (kind === "rating") answers.ratings[slot][criterion] = value;
    else answers[kind] = value;
  }
  return answers;
}
