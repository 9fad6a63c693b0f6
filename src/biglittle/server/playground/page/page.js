// The playground: the target alone and a policy, one after the other, token by token.
// What comes from the server goes into the page as text, never as markup.

const KEY = "biglittle-key";
const COMPLETION = "def is_leap_year(year):\n";
const ORIGINS = {
  accepted: "drafted, and accepted by the target",
  corrected: "the target's, in place of a drafted token",
  target: "written by the target",
};
const ENDS = { stop: "the model ended", length: "cut at the maximum" };

const at = (id) => document.getElementById(id);
const percent = (share) => {
  if (share > 0 && share < 0.0005) return "less than 0.1 %";
  return `${(100 * share).toFixed(share > 0.0995 || share === 0 ? 0 : 1)} %`;
};
const seconds = (time) => (time < 1 ? `${Math.round(1000 * time)} ms` : `${time.toFixed(1)} s`);
const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

// The server.

let key = sessionStorage.getItem(KEY);

async function ask(path, options = {}) {
  const headers = {};
  if (options.body) headers["content-type"] = "application/json";
  if (key) headers.authorization = `Bearer ${key}`;
  const answer = await fetch(path, { ...options, headers });
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => null);
  const error = new Error(told?.error?.message ?? `the server answered ${answer.status}`);
  error.status = answer.status;
  throw error;
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the server left off in the middle");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.slice("data: ".length);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

// One of the two sides.

class Side {
  constructor(root, name) {
    this.root = root;
    this.name = name;
    root.append(at("side").content.cloneNode(true));
    this.state = root.querySelector(".state");
    this.text = root.querySelector(".text");
    this.text.setAttribute("aria-label", `${name}: tokens; the arrow keys go from one to the next`);
    this.remark = root.querySelector(".remark");
    makeWalkable(this.text);
    this.reset();
  }

  reset() {
    this.tokens = [];
    this.sure = []; // the draft's probabilities of accepted tokens that have not come yet
    this.stats = null;
    this.speed = null;
    this.text.replaceChildren();
    this.remark.textContent = "";
    for (const number of ["speed", "first", "acceptance", "passes"]) this.show(number, "–");
    this.say("");
    this.chart?.reset();
  }

  say(what, bad = false) {
    this.state.textContent = what;
    this.state.classList.toggle("bad", bad);
  }

  show(number, value) {
    this.root.querySelector(`[data-number="${number}"]`).textContent = value;
  }

  async run(path, body, signal) {
    this.say("reading the prompt");
    this.root.classList.add("writing");
    const begun = performance.now();
    let end = null;
    try {
      const answer = await ask(path, { method: "POST", body: JSON.stringify(body), signal });
      for await (const event of events(answer)) {
        this.named?.(event);
        for (const choice of event.choices) {
          if (choice.details) this.add(choice.details, begun);
          end = choice.finish_reason ?? end;
        }
      }
      this.say(`${count(this.tokens.length, "token")}, ${ENDS[end]}`);
    } catch (error) {
      this.say(signal.aborted ? "cancelled" : error.message, !signal.aborted);
    } finally {
      this.root.classList.remove("writing");
    }
  }

  add({ tokens, rounds, stats }, begun) {
    for (const round of rounds) this.sure.push(...round.confidence.slice(0, round.accepted));
    if (!this.tokens.length && tokens.length) {
      this.begun = performance.now();
      // The end of the prompt gives the target's first token; else a whole round was the first.
      this.early = tokens[0].origin === "target" ? 1 : tokens.length;
      this.show("first", seconds((this.begun - begun) / 1000));
      this.say("writing");
    }
    for (const token of tokens) this.write(token);
    this.chart?.add(rounds);
    if (stats) this.finish(stats);
    else this.measure((performance.now() - this.begun) / 1000);
  }

  write(token) {
    if (token.origin === "accepted") token.draft = this.sure.shift();
    const part = document.createElement("span");
    part.className = `token ${token.origin}`;
    if (!token.text) part.classList.add("silent");
    else if (/^\n+$/.test(token.text)) part.classList.add("newline");
    part.textContent = token.text;
    part.tabIndex = this.tokens.length ? -1 : 0;
    part.setAttribute("role", "option");
    part.setAttribute("aria-label", about(token).join("; "));
    part.details = token;
    this.tokens.push(token);
    this.text.append(part);
  }

  measure(time) {
    const later = this.tokens.length - this.early;
    this.speed = later > 0 && time > 0 ? later / time : null;
    this.show("speed", this.speed?.toFixed(1) ?? "–");
  }

  finish(stats) {
    this.stats = stats;
    this.measure(stats.total_seconds - stats.first_token_seconds);
    this.show("first", seconds(stats.first_token_seconds));
    this.show("acceptance", stats.drafted ? percent(stats.acceptance_rate) : "–");
    this.show("passes", stats.target_passes);
    if (stats.reused_tokens) {
      const kept = `${stats.reused_tokens} of ${count(stats.prompt_tokens, "token")}`;
      this.remark.textContent = `Of the prompt, ${kept} were kept from an earlier run.`;
    }
  }

  get written() {
    return this.tokens.map((token) => token.text).join("");
  }

  /** Mark the token that a character is in, or after all of them the last one; its number. */
  mark(character) {
    let end = 0;
    let found = this.tokens.findIndex((token) => (end += token.text.length) > character);
    if (found < 0) found = this.tokens.length - 1;
    this.text.children[found]?.classList.add("differs");
    return found + 1;
  }
}

// The tooltip: by pointer, by touch, and by keyboard.

function about({ text, origin, probability, draft }) {
  const lines = [text ? JSON.stringify(text) : "no text of its own", ORIGINS[origin]];
  lines.push(`target's probability ${percent(probability)}`);
  if (draft !== undefined) lines.push(`draft's probability ${percent(draft)}`);
  return lines;
}

let shown = null;

function tell(part) {
  const tip = at("tip");
  shown = part;
  tip.hidden = !part;
  if (!part) return;
  tip.textContent = about(part.details).join("\n");
  tip.style.inset = "0 auto auto 0"; // its size where there is room, not where it last was
  const place = part.getClientRects()[0] ?? part.getBoundingClientRect();
  const box = tip.getBoundingClientRect();
  const below = place.bottom + 6;
  const fits = below + box.height < innerHeight;
  tip.style.top = `${fits ? below : place.top - box.height - 6}px`;
  tip.style.left = `${Math.max(8, Math.min(place.left, innerWidth - box.width - 8))}px`;
}

function makeWalkable(list) {
  const focused = () => (list.contains(document.activeElement) ? document.activeElement : null);
  list.addEventListener("pointerover", (event) => tell(event.target.closest(".token") ?? focused()));
  list.addEventListener("pointerleave", () => tell(focused()));
  list.addEventListener("click", (event) => event.target.closest(".token")?.focus());
  list.addEventListener("focusout", () => tell(null));
  list.addEventListener("focusin", (event) => {
    for (const part of list.querySelectorAll('[tabindex="0"]')) part.tabIndex = -1;
    event.target.tabIndex = 0;
    tell(event.target);
  });
  list.addEventListener("keydown", (event) => {
    const here = event.target;
    const goal = {
      ArrowRight: here.nextElementSibling,
      ArrowLeft: here.previousElementSibling,
      Home: list.firstElementChild,
      End: list.lastElementChild,
    }[event.key];
    if (goal === undefined) return;
    event.preventDefault();
    goal?.focus();
  });
}

addEventListener("keydown", (event) => event.key === "Escape" && tell(null));
for (const event of ["scroll", "resize"]) addEventListener(event, () => tell(shown));

// The lookahead of every round, as bars.

class Chart {
  constructor(root) {
    root.append(at("rounds").content.cloneNode(true));
    this.svg = root.querySelector("svg");
    this.summary = root.querySelector(".summary");
    this.reset();
    addEventListener("resize", () => this.draw());
  }

  reset() {
    this.rounds = [];
    this.draw();
  }

  add(rounds) {
    this.rounds.push(...rounds);
    if (rounds.length) this.draw();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.svg;
    const [left, top, base] = [24, 8, height - 2];
    const step = Math.max(4, Math.min(20, (width - left) / Math.max(1, this.rounds.length)));
    const seen = this.rounds.slice(-Math.max(1, Math.floor((width - left) / step)));
    const most = Math.max(4, ...seen.map((round) => round.drafted + round.fallback));
    const unit = (base - top) / most;
    const parts = [0, most].flatMap((value) => {
      const y = base - value * unit;
      const label = shape("text", { x: left - 8, y: y + 4 });
      label.textContent = value;
      return [shape("line", { x1: left, x2: width, y1: y, y2: y }), label];
    });
    const bar = (kind, index, from, to) =>
      shape("rect", {
        class: kind,
        x: left + index * step + 1,
        y: base - to * unit,
        width: step - 2,
        height: (to - from) * unit,
      });
    seen.forEach(({ drafted, accepted, fallback }, index) => {
      if (drafted > accepted) parts.push(bar("lost", index, accepted, drafted));
      if (accepted) parts.push(bar("kept", index, 0, accepted));
      const x = left + (index + 0.5) * step;
      if (fallback) {
        parts.push(shape("circle", { class: "handed", cx: x, cy: base - (drafted + 0.5) * unit, r: 2 }));
      }
    });
    this.svg.replaceChildren(...parts);
    this.summary.textContent = this.words();
  }

  words() {
    const rounds = this.rounds.length;
    if (!rounds) return "No rounds yet.";
    const mean = (number) => (this.rounds.reduce((sum, round) => sum + number(round), 0) / rounds).toFixed(1);
    const handed = this.rounds.filter((round) => round.fallback).length;
    const last = this.rounds.at(-1);
    return (
      `${count(rounds, "round")}: ${mean((round) => round.drafted)} drafted and ` +
      `${mean((round) => round.accepted)} accepted on average, ${handed} handed over. ` +
      `The last one: ${last.accepted} of ${last.drafted}.`
    );
  }
}

function shape(kind, attributes) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  return found;
}

// Policies: the choice and the sliders write the string, and the string moves them.

class Policies {
  constructor(facts) {
    this.facts = facts;
    this.select = at("policy");
    this.string = at("string");
    this.select.append(new Option("as written below", ""));
    for (const { name, lossless } of facts.policies) {
      const refused = !lossless && !facts.allow_lossy;
      const option = new Option(lossless ? name : `${name} (lossy${refused ? ", refused" : ""})`, name);
      option.disabled = refused;
      this.select.append(option);
    }
    this.select.addEventListener("change", () => this.choose());
    this.string.addEventListener("input", () => this.read());
    this.string.value = facts.policy;
    this.read();
  }

  /** What a request asks for: nothing where it is the server's own. */
  get asked() {
    const text = this.string.value.trim();
    return text === this.facts.policy ? undefined : text;
  }

  choose() {
    const card = this.card(this.select.value);
    if (!card) return;
    this.others = [];
    this.slide(card, new Map());
    this.compose();
  }

  card(name) {
    return this.facts.policies.find((card) => card.name === name);
  }

  read() {
    const text = this.string.value.trim();
    const [head, ...rules] = text.split("+");
    const [name, options = ""] = head.split(/:(.*)/s);
    const given = new Map(options.split(",").filter(Boolean).map((item) => item.trim().split("=")));
    const card = rules.length ? undefined : this.card(name);
    this.select.value = card?.name ?? "";
    const known = card?.options.map((option) => option.name) ?? [];
    this.others = [...given].filter(([option]) => !known.includes(option));
    this.slide(card, given);
    this.judge([head, ...rules]);
  }

  slide(card, given) {
    this.chosen = card;
    this.sliders = (card?.options ?? []).map((option) => {
      const range = document.createElement("input");
      const value = document.createElement("output");
      const label = document.createElement("label");
      Object.assign(range, { type: "range", id: `option-${option.name}` });
      Object.assign(range, { min: option.least, max: option.most, step: option.step });
      range.value = given.get(option.name) ?? option.default;
      label.htmlFor = range.id;
      value.htmlFor = range.id;
      label.textContent = option.name;
      value.value = given.get(option.name) ?? option.default;
      range.addEventListener("input", () => {
        value.value = range.value;
        this.compose();
      });
      return { option, range, value, label };
    });
    at("options").replaceChildren(
      ...this.sliders.map(({ label, range, value }) => {
        const row = document.createElement("div");
        row.className = "slider";
        row.append(label, range, value);
        return row;
      }),
    );
    at("about").textContent = card?.about ?? "";
  }

  compose() {
    const { name, lossless } = this.chosen;
    // What a reader of a lossy policy has to know is always written.
    const told = (option) => !lossless && option.name !== "tokens";
    const changed = this.sliders
      .filter(({ option, value }) => told(option) || Number(value.value) !== option.default)
      .map(({ option, value }) => [option.name, value.value]);
    const options = [...changed, ...this.others].map((pair) => pair.join("=")).join(",");
    this.string.value = options ? `${name}:${options}` : name;
    this.judge([name]);
  }

  /** Say of a lossy rule that it is one, and whether the server has it. */
  judge(rules) {
    const names = rules.map((rule) => rule.trim().split(":")[0].toLowerCase());
    const card = this.facts.policies.find(({ lossless }) => !lossless);
    const lossy = names.includes(card?.name);
    const refused = lossy && !this.facts.allow_lossy;
    const reason = `${card?.name} is lossy: its texts may differ from the target's own.`;
    const remedy = " This server refuses it; it has to be started with --allow-lossy.";
    at("lossy").textContent = reason + (this.facts.allow_lossy ? "" : remedy);
    at("lossy").hidden = !card || (this.facts.allow_lossy && !lossy);
    this.string.setCustomValidity(refused ? reason + remedy : "");
    this.string.setAttribute("aria-invalid", refused);
  }
}

// The page.

let stop = null; // ends what runs

function begin(facts) {
  at("server").textContent = `${facts.model} · version ${facts.version}`;
  at("modes").querySelectorAll("label").forEach((label) => (label.hidden = !facts.chat));
  if (!facts.chat) at("prompt").value = COMPLETION;
  at("tokens").max = facts.max_tokens;
  at("tokens").value = Math.min(64, facts.max_tokens);
  at("desk").hidden = false;
  const drafts = facts.policies.length > 0;
  at("policies").hidden = !drafts;
  at("chosen").hidden = !drafts;
  if (!drafts) at("run").textContent = "Run";
  const policies = new Policies(facts);
  const alone = new Side(at("alone"), "Target alone");
  const chosen = new Side(at("chosen"), "Policy");
  chosen.chart = new Chart(at("chosen"));
  chosen.named = ({ policy, lossless }) => title(policy, lossless);
  title(facts.policy, facts.lossless);
  at("cancel").addEventListener("click", () => stop?.abort());
  at("request").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!stop) runBoth(facts, policies.asked, alone, drafts ? chosen : null);
  });
}

function title(policy, lossless) {
  if (at("chosen-title").querySelector("code")?.textContent === policy) return;
  const name = document.createElement("code");
  name.textContent = policy;
  const parts = ["Policy ", name];
  if (!lossless) {
    const mark = document.createElement("span");
    mark.className = "mark";
    mark.textContent = "lossy";
    parts.push(mark);
  }
  at("chosen-title").replaceChildren(...parts);
}

async function runBoth(facts, policy, alone, chosen) {
  const [path, body] = request(facts);
  stop = new AbortController();
  const { signal } = stop;
  at("run").disabled = true;
  at("cancel").disabled = false;
  alone.reset();
  chosen?.reset();
  chosen?.say("waits until the target is done");
  at("verdict").textContent = "The target writes alone …";
  if (at("results").getBoundingClientRect().top > innerHeight * 0.8) at("results").scrollIntoView();
  await alone.run(path, { ...body, policy: "none" }, signal);
  if (chosen && !signal.aborted) {
    at("verdict").textContent = "The policy writes …";
    await chosen.run(path, { ...body, policy }, signal);
  } else chosen?.say("");
  at("verdict").textContent = signal.aborted ? "Cancelled." : verdict(alone, chosen, body);
  stop = null;
  at("run").disabled = false;
  at("cancel").disabled = true;
}

function request(facts) {
  const chat = facts.chat && new FormData(at("request")).get("mode") === "chat";
  const prompt = at("prompt").value;
  const body = {
    model: facts.model,
    ...(chat ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
    max_tokens: at("tokens").valueAsNumber,
    temperature: at("temperature").valueAsNumber,
    stream: true,
    details: true,
  };
  return [chat ? "v1/chat/completions" : "v1/completions", body];
}

function verdict(alone, chosen, { temperature }) {
  if (!chosen?.stats || !alone.stats) return chosen ? "" : "Done.";
  const [ours, theirs] = [chosen.written, alone.written];
  const parts = [];
  if (ours === theirs) parts.push("Both texts are equal");
  else {
    let same = 0;
    while (ours[same] === theirs[same]) same += 1;
    alone.mark(same);
    const chance = temperature > 0 ? " (they are samples)" : "";
    parts.push(`The texts differ from token ${chosen.mark(same)} on${chance}`);
  }
  if (chosen.speed && alone.speed) parts.push(`${(chosen.speed / alone.speed).toFixed(2)}× the target's speed`);
  return `${parts.join(", ")}.`;
}

function complain(what) {
  at("problem").textContent = what;
  at("problem").hidden = !what;
}

async function enter() {
  complain("");
  try {
    const facts = await (await ask("v1/playground")).json();
    at("entrance").hidden = true;
    begin(facts);
  } catch (error) {
    if (error.status !== 401) complain(`The server cannot be asked: ${error.message}`);
    else {
      if (key) complain("That key is not the server's.");
      sessionStorage.removeItem(KEY);
      at("entrance").hidden = false;
      at("key").focus();
    }
  }
}

at("entrance").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value.trim();
  at("key").value = "";
  sessionStorage.setItem(KEY, key);
  enter();
});
enter();
