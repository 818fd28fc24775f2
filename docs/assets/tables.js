// Marks tables that are wider than the screen, so that tables.css can show a hint.
function markWideTables() {
  for (const wrapper of document.querySelectorAll(".md-typeset__scrollwrap")) {
    wrapper.classList.toggle("wide", wrapper.scrollWidth > wrapper.clientWidth + 1);
  }
}
addEventListener("load", markWideTables);
addEventListener("resize", markWideTables);
