// Grades count when the service has confirmed that they are on disk. Until then, the number of judged hits
// stays. A grade that is not saved is removed from the page.
const part = id => document.getElementById(id), first = 300;
const token = decodeURIComponent(location.hash.slice(1));
const changes = [];
let view = null, current = 0, saving = Promise.resolve(), unsaved = 0, loading = false;

async function call(path, body) {
  const headers = token ? {Authorization: `Bearer ${token}`} : {};
  if (body) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), cache: "no-store"});
  } catch {
    throw new Error("the service does not answer");
  }
  const content = await answer.json().catch(() => ({error: `status ${answer.status}`}));
  if (answer.status == 401) throw new Error("wrong or missing token; open the link that ends with # and the token");
  if (!answer.ok) throw new Error(content.error);
  return content;
}

const report = text => { part("problem").textContent = text };
const judge = () => part("name").value.trim();
const radios = index => [...part("hits").children[index].querySelectorAll("[type=radio]")];

function showProgress(counts) {
  if (counts.number) view.number = counts.number;
  const query = view && view.query ? `Query ${view.number} of ${counts.queries}. ` : "All hits are judged, thank you. ";
  part("progress").textContent = `${query}${counts.done} of ${counts.total} hits judged.`;
}

function showGrade(index) {
  for (const radio of radios(index)) radio.checked = view.hits[index].grade == radio.value && view.hits[index].grade !== null;
}

function makeCurrent(index) {
  current = index;
  [...part("hits").children].forEach((item, n) => n == index ? item.setAttribute("aria-current", "true") : item.removeAttribute("aria-current"));
}

function goTo(index) {
  makeCurrent(index);
  const group = radios(index);
  (group.find(radio => radio.checked) || group[0]).focus({preventScroll: true});
  part("hits").children[index].scrollIntoView({block: "nearest"});
}

function addHit(hit, index) {
  const item = part("hit").content.firstElementChild.cloneNode(true), find = selector => item.querySelector(selector);
  const named = (element, id) => { element.id = `${id}-${index}`; return element.id };
  find("h3").textContent = hit.title || hit.id;
  find(".text").textContent = hit.text.slice(0, first);
  find("details").hidden = hit.text.length <= first;
  find("details p").textContent = hit.text.slice(first);
  find("legend").textContent = `Grade of document ${index + 1} of ${view.hits.length}`;
  find("fieldset").setAttribute("aria-describedby", `${named(find("h3"), "title")} ${named(find(".text"), "text")}`);
  for (const radio of item.querySelectorAll("[type=radio]")) {
    radio.name = `grade-${index}`;
    radio.addEventListener("change", () => grade(index, Number(radio.value)));
  }
  const note = find(".note input");
  note.value = hit.note;
  note.setAttribute("aria-describedby", find("h3").id);
  note.addEventListener("change", () => { hit.note = note.value; if (hit.grade !== null) save(index, hit.grade, hit.grade) });
  item.addEventListener("focusin", () => makeCurrent(index));
  item.addEventListener("click", () => makeCurrent(index));
  part("hits").append(item);
}

function show(answer) {
  view = answer;
  showProgress(answer);
  part("work").hidden = !answer.query;
  part("start").hidden = true;
  part("hits").textContent = "";
  part("reminder").textContent = "";
  if (!answer.query) return document.querySelector("h1").focus();
  part("query").textContent = answer.query.text;
  part("reminder").textContent = answer.query.text;
  answer.hits.forEach(addHit);
  answer.hits.forEach((_, index) => showGrade(index));
  scrollTo(0, 0);
  goTo(Math.max(answer.hits.findIndex(hit => hit.grade === null), 0));
}

async function load(what) {
  if (loading) return;
  loading = true;
  try {
    await saving;
    show(await call(`/judge/next?${new URLSearchParams({by: judge(), ...what})}`));
    report("");
    return true;
  } catch (error) {
    report(`Not loaded: ${error.message}.`);
  } finally {
    loading = false;
  }
}

// Save a grade; null takes it back. If that fails, show the grade before again.
function save(index, value, before) {
  const shown = view, hit = shown.hits[index];
  const body = {query_id: shown.query.id, id: hit.id, grade: value, note: hit.note, by: judge()};
  unsaved++;
  saving = saving.then(() => call("/judge", body)).then(counts => {
    if (shown == view) showProgress(counts);
    report("");
  }).catch(error => {
    if (hit.grade === value) hit.grade = before;
    report(`Not saved: “${hit.title || hit.id}”. ${error.message.replace(/^not saved: /, "")}.`);
    if (shown == view) { showGrade(index); goTo(index) }
  }).finally(() => unsaved--);
}

function grade(index, value) {
  const hit = view.hits[index], before = hit.grade;
  hit.grade = value;
  changes.push({query: view.query.id, index, before});
  showGrade(index);
  save(index, value, before);
}

function moveOn() {
  const n = view.hits.length, order = [...Array(n).keys()].map(step => (current + 1 + step) % n);
  const open = order.find(index => view.hits[index].grade === null);
  if (open === undefined) part("next").focus();
  else goTo(open);
}

async function undo() {
  const change = changes.pop();
  if (!change) return report("Nothing to undo.");
  if (change.query != (view.query || {}).id && !await load({query: change.query})) return changes.push(change);
  const hit = view.hits[change.index], after = hit.grade;
  hit.grade = change.before;
  showGrade(change.index);
  save(change.index, change.before, after);
  goTo(change.index);
}

const next = () => load({after: view.query.id});

document.addEventListener("keydown", event => {
  if (!view || loading || event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const at = event.target;
  if (at.matches("input:not([type=radio])")) {
    if (event.key == "Enter" && view.query) { event.preventDefault(); at.blur(); goTo(current) }
  } else if (/^[0-3]$/.test(event.key) && view.query) {
    event.preventDefault();
    grade(current, Number(event.key));
    moveOn();
  } else if (event.key == "u") {
    undo();
  } else if (event.key == "Enter" && view.query && !at.matches("button, summary")) {
    event.preventDefault();
    next();
  }
});
part("next").addEventListener("click", next);
part("undo").addEventListener("click", undo);
part("start").addEventListener("submit", event => {
  event.preventDefault();
  try { localStorage.setItem("rerank-judge", judge()) } catch { /* the name is asked again */ }
  if (judge()) load({});
});
addEventListener("beforeunload", event => { if (unsaved) event.preventDefault() });
addEventListener("hashchange", () => location.reload());
try { part("name").value = localStorage.getItem("rerank-judge") || "" } catch { /* no storage */ }
part("name").focus();
