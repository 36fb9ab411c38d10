// The state of the page: networks, length and step. It is stored in the address, #a/b/length/step.
"use strict";

const $ = (id) => document.getElementById(id);
const state = { a: null, b: null, length: 0, step: 0, shown: [], timer: null };
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
const escapeText = (text) => { const node = document.createElement("i"); node.textContent = text; return node.innerHTML; };
const label = (about) => about.name.replace(/^.*\//, "");

gallery.start = () => {
  $("cards").innerHTML = gallery.about.map((about) => `<a href="#${about.slug}" data-slug="${about.slug}">
<strong>${escapeText(about.title)}</strong><small>trained to ${about.train[1]}, ${about.reach > about.train[1] ? `works to ${about.reach}` : about.reach ? `95% only to ${about.reach}` : "95% nowhere"}</small>${gallery.spark(about)}</a>`).join("");
  addEventListener("hashchange", route);
  route().then(() => { if (!calm && !location.hash) play(true); });
};

async function route() {
  const [a, b, length, step] = decodeURIComponent(location.hash.slice(1)).split("/");
  const known = (slug) => gallery.about.find((about) => about.slug === slug);
  const first = known(a) || gallery.about[0];
  const same = first.slug === (state.a && state.a.slug);
  // Without an address, the first network is shown beside the second one.
  const wanted = known(a) ? known(b) : gallery.about[1];
  const second = wanted && wanted.question === first.question && wanted !== first ? wanted : null;
  if (same && state.b === second && length === undefined) return;
  play(false);
  Object.assign(state, { a: first, b: second });
  await open_(length === undefined ? null : +length, step === undefined ? null : +step);
}

async function open_(length, step) {
  const networks = await Promise.all([state.a, state.b].filter(Boolean).map((about) => gallery.load(about.slug)));
  const shared = networks[0].moments.map((moment) => moment.length).filter((n) => networks.every(({ moments }) => moments.some((moment) => moment.length === n)));
  state.lengths = shared;
  const start = shared.findIndex((n) => n === length);
  state.length = start >= 0 ? start : readable(shared, state.a.train[1]);
  state.shown = networks.map(({ about, moments }) => ({ about, moments: shared.map((n) => moments.find((moment) => moment.length === n)) }));
  const others = gallery.about.filter((about) => about.question === state.a.question && about !== state.a);
  $("beside").innerHTML = `<option value="">${others.length ? "nothing" : "none with this task"}</option>` + others.map((about) =>
    `<option value="${about.slug}" ${about === state.b ? "selected" : ""}>${escapeText(about.model)}: ${escapeText(label(about))}</option>`).join("");
  $("beside").disabled = !others.length;
  for (const card of $("cards").children) card.setAttribute("aria-current", String(card.dataset.slug === state.a.slug || Boolean(state.b && card.dataset.slug === state.b.slug)));
  $("length").max = shared.length - 1;
  build();
  await change(state.length, step);
}

// The initial length: the first beyond training if it is short enough to be legible, else a moderate one.
function readable(lengths, trained) {
  const beyond = lengths.findIndex((n) => n > trained), moderate = lengths.findIndex((n) => n >= 16);
  return beyond >= 0 && lengths[beyond] <= 40 ? beyond : Math.max(moderate, 0);
}

function build() {
  const stage = $("stage");
  stage.replaceChildren();
  stage.className = state.shown.length > 1 ? "two" : "";
  for (const one of state.shown) {
    const { about } = one, section = document.createElement("section");
    section.className = "network";
    section.setAttribute("aria-label", about.title);
    section.innerHTML = `<div class="text"><h2>${escapeText(about.title)}</h2>
<p class="facts">${escapeText(about.what)}${about.what ? ". " : ""}${about.parameters.toLocaleString("en")} parameters, trained on lengths ${about.train[0]} to ${about.train[1]}; ${about.seeds > 1 ? `best of ${about.seeds} seeds` : "one seed"}, ${about.reach ? `at least 95% without a mistake up to ${about.reach}` : "never 95% without a mistake"}. <code>${escapeText(about.name)}</code></p>
<div class="row"><span>input</span><div class="tokens" data-is="inputs"></div></div>
<div class="row"><span>answer</span><div class="tokens" data-is="answers"></div></div><p class="verdict"></p></div>
<div class="chart"><div class="curve"></div><p class="say">Answers without a mistake, each seed; dashed: symbols right.</p></div><div class="figures"></div>`;
    stage.append(section);
    one.section = section;
    one.chart = gallery.curve(section.querySelector(".curve"), about, state.lengths, () => state.lengths[state.length], (n) => change(n));
  }
}

// Shows another length: its input, its figures, and a step at a similar fraction of it.
async function change(length, step = null) {
  const part = +$("step").max ? state.step / +$("step").max : 0;
  state.length = clamp(length, 0, state.lengths.length - 1);
  for (const one of state.shown) { one.moment = await gallery.unpack(one.moments[state.length]); figuresOf(one); one.chart.redraw(); }
  state.master = state.shown.reduce((a, b) => (b.moment.steps.length > a.moment.steps.length ? b : a));
  const last = state.master.moment.steps.length - 1;
  $("step").max = last;
  $("length").value = state.length;
  $("length-now").textContent = `${state.lengths[state.length]}`;
  $("length").setAttribute("aria-valuetext", `length ${state.lengths[state.length]}`);
  go(step === null ? Math.round(part * last) : step);
}

function figuresOf(one) {
  const box = one.section.querySelector(".figures"), groups = new Map();
  one.moment.views.forEach((view, n) => { const key = view.group || n; groups.set(key, [...(groups.get(key) || []), view]); });
  box.replaceChildren();
  one.figures = [...groups.values()].map((views) => {
    const figure = document.createElement("figure"), caption = document.createElement("figcaption"), canvas = document.createElement("canvas"), say = document.createElement("p");
    say.className = "say";
    canvas.setAttribute("role", "img");
    figure.append(caption, canvas, say);
    box.append(figure);
    const shown = { figure, caption, canvas, say, view: views[0] };
    if (views.length > 1) {
      const select = document.createElement("select");
      select.setAttribute("aria-label", "which one");
      views.forEach((view, n) => select.add(new Option(view.title, n)));
      select.value = one.choice || 0;
      shown.view = views[select.value] || views[0];
      select.addEventListener("change", () => { one.choice = +select.value; shown.view = views[select.value]; keys(); paint(one, shown); });
      caption.append(select);
    } else caption.append(document.createTextNode(views[0].title));
    const keys = () => {
      caption.querySelectorAll(".key").forEach((key) => key.remove());
      const found = gallery.figures[shown.view.kind].keys || [];
      for (const [colour, words] of typeof found === "function" ? found(shown.view) : found) {
        const key = document.createElement("span");
        key.className = "key"; key.style.setProperty("--c", `var(--${colour})`); key.textContent = words;
        caption.append(key);
      }
    };
    keys();
    if (gallery.turned && shown.view.kind === "space" && shown.view.a.read.shape[1] === 3) turning(one, shown);
    return shown;
  });
  if (!one.figures.length) box.innerHTML = `<p class="say">This network has no memory that it shows: its state is a vector of fixed size.</p>`;
  tokensOf(one);
}

function turning(one, shown) {
  shown.canvas.style.cursor = "grab";
  shown.canvas.addEventListener("pointermove", (event) => {
    if (!event.buttons) return;
    const [yaw, pitch] = gallery.turned.get(shown.view);
    gallery.turned.set(shown.view, [yaw - event.movementX / 120, clamp(pitch + event.movementY / 120, -1.5, 1.5)]);
    paint(one, shown);
  });
}

function tokensOf(one) {
  const { inputs, right } = one.moment, many = Math.max(inputs.length, right.length) > 60;
  const fill = (name, words) => {
    const box = one.section.querySelector(`[data-is=${name}]`);
    box.className = `tokens${many ? " many" : ""}`;
    box.replaceChildren(...words.map((word) => { const token = document.createElement("b"); token.textContent = word; return token; }));
    return [...box.children];
  };
  one.inputs = fill("inputs", inputs);
  one.answers = fill("answers", right);
}

// The step of a network that corresponds to a step of the one with the most steps; -1 before it begins.
function stepOf(one, at) {
  const master = state.master.moment, moment = one.moment;
  if (one === state.master) return at;
  if (master.answers[at] >= 0) return Math.max(moment.answers.indexOf(master.answers[at]), 0);
  if (master.reads[at] >= 0) return moment.reads.indexOf(master.reads[at]);
  const read = master.reads.slice(0, at).filter((n) => n >= 0).pop();
  return read === undefined ? -1 : moment.reads.indexOf(read);
}

function go(step) {
  state.step = clamp(Math.round(step) || 0, 0, +$("step").max);
  $("step").value = state.step;
  const words = state.master.moment.steps[state.step];
  $("step-now").textContent = `${state.step + 1}/${+$("step").max + 1} ${words}`;
  $("step").setAttribute("aria-valuetext", `step ${state.step + 1} of ${+$("step").max + 1}, ${words}`);
  for (const one of state.shown) {
    one.at = stepOf(one, state.step);
    one.section.classList.toggle("stale", one.at < 0);
    paintTokens(one);
    for (const shown of one.figures) paint(one, shown);
  }
  const parts = [state.a.slug, state.b ? state.b.slug : "", state.lengths[state.length], state.step];
  history.replaceState(null, "", `#${parts.join("/")}`);
  if (!state.timer) $("announce").textContent = `Step ${state.step + 1}, ${words}. ${state.shown.map((one) => one.section.querySelector(".verdict").textContent).join(" ")}`;
}

function paintTokens(one) {
  const { moment, at } = one, read = at < 0 ? -1 : moment.reads[at], answer = at < 0 ? -1 : moment.answers[at];
  const whole = moment.reads.every((n) => n < 0);
  const upTo = at < 0 ? -1 : Math.max(-1, ...moment.reads.slice(0, at + 1)), given = at < 0 ? -1 : Math.max(-1, ...moment.answers.slice(0, at + 1));
  one.inputs.forEach((token, n) => { token.className = n === read ? "now" : whole || n <= upTo ? "done" : ""; });
  one.answers.forEach((token, n) => {
    const done = n <= given, hit = moment.hits[n] === "1";
    token.className = !done ? "wait" : hit ? (n === answer ? "now" : "done") : "bad";
    if (done && !hit) token.innerHTML = `<s>${escapeText(moment.given[n])}</s><i>${escapeText(moment.right[n])}</i>`;
    else token.textContent = done ? moment.given[n] : "·";
  });
  for (const [tokens, n] of [[one.inputs, read], [one.answers, answer]])
    if (n >= 0 && tokens[n]) { const box = tokens[n].parentElement; box.scrollTop = tokens[n].offsetTop - box.clientHeight / 2; }
  const total = moment.hits.length, all = moment.hits.split("1").length - 1, so = moment.hits.slice(0, given + 1).split("1").length - 1;
  const verdict = one.section.querySelector(".verdict");
  verdict.className = `verdict${all < total ? " wrong" : ""}`;
  verdict.textContent = given < 0 ? `no answer yet; ${all} of ${total} right in the end${all < total ? " ✗" : " ✓"}` : given + 1 < total ? `${so} of ${given + 1} right so far; ${all} of ${total} in the end${all < total ? " ✗" : " ✓"}` : `${all} of ${total} right${all < total ? " ✗" : " ✓"}`;
}

function paint(one, shown) {
  const figure = gallery.figures[shown.view.kind], width = shown.figure.clientWidth;
  figure.draw(gallery.pen(shown.canvas, figure.height(width, shown.view)), shown.view, one.at, one.moment);
  shown.say.textContent = figure.say(shown.view, one.at, one.moment);
  shown.canvas.setAttribute("aria-label", `${shown.view.title}. ${shown.say.textContent}`);
}

function play(on) {
  clearInterval(state.timer);
  state.timer = null;
  if (on) {
    if (state.step >= +$("step").max) go(0);
    const last = +$("step").max + 1, pause = clamp(9000 / last, 45, 420);
    state.timer = setInterval(() => { if (state.step >= +$("step").max) play(false); else go(state.step + 1); }, pause);
  }
  $("play").textContent = state.timer ? "pause" : "play";
  $("play").setAttribute("aria-pressed", String(Boolean(state.timer)));
}

$("step").addEventListener("input", () => { play(false); go(+$("step").value); });
$("length").addEventListener("input", () => { play(false); change(+$("length").value); });
$("play").addEventListener("click", () => play(!state.timer));
$("beside").addEventListener("change", () => { location.hash = `#${state.a.slug}/${$("beside").value}/${state.lengths[state.length]}/${state.step}`; });
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || ["SELECT", "INPUT"].includes(event.target.tagName)) return;
  const acts = { ArrowRight: () => go(state.step + 1), ArrowLeft: () => go(state.step - 1), Home: () => go(0), End: () => go(+$("step").max),
    ArrowUp: () => change(state.length + 1), ArrowDown: () => change(state.length - 1) };
  if (event.key === " " && event.target.tagName !== "BUTTON" && event.target.tagName !== "A") { event.preventDefault(); play(!state.timer); }
  else if (acts[event.key]) { event.preventDefault(); play(false); acts[event.key](); }
});

// Light or dark: the setting of the system, unless the button was used.
const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
try { chosen = localStorage.getItem("theme"); } catch { /* a page from a file may have no storage */ }
function theme() {
  document.documentElement.dataset.theme = chosen || (dark.matches ? "dark" : "light");
  redraw();
}
function redraw() {
  for (const one of state.shown) {
    if (!one.section || !one.moment) continue;
    const box = one.section.querySelector(".curve");
    one.chart.destroy();
    one.chart = gallery.curve(box, one.about, state.lengths, () => state.lengths[state.length], (n) => change(n));
    for (const shown of one.figures) paint(one, shown);
  }
}
$("theme").addEventListener("click", () => {
  chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("theme", chosen); } catch { /* as above */ }
  theme();
});
dark.addEventListener("change", theme);
let waiting = null;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(redraw, 120); });
theme();
