
// Search and filters of the query list. Without this script, the page shows all queries.
const list = document.querySelector("#queries"), rows = [...list.querySelectorAll("details.query")];
const controls = list.querySelector(".controls"), more = list.querySelector(".more"), step = 50;
let most = step;
function show() {
  const words = controls.querySelector("input").value.toLowerCase().split(/\s+/);
  const outcome = controls.querySelector("select").value;
  let found = 0;
  for (const row of rows) {
    const text = row.querySelector("summary").textContent.toLowerCase() + row.dataset.categories;
    const fits = words.every(word => text.includes(word)) &&
      (!outcome || row.dataset.outcome == outcome || outcome == "none" && row.dataset.relevant == "0");
    row.hidden = !fits || ++found > most;
  }
  controls.querySelector("output").textContent = `${found} of ${rows.length} queries`;
  more.hidden = found <= most;
}
controls.addEventListener("input", () => { most = step; show() });
more.addEventListener("click", () => { most += step; show() });
controls.hidden = false;
show();
