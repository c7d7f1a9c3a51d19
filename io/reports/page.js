// Draws every chart of the page. Expressions are interpreted, not compiled, so that nothing is ever evaluated as code.
(async () => {
  const config = JSON.parse(document.getElementById("config").textContent);
  for (const place of document.querySelectorAll("[data-chart]")) {
    const spec = JSON.parse(document.getElementById(place.dataset.chart).textContent);
    const options = {
      actions: false, ast: true, config, defaultStyle: false, mode: "vega-lite", renderer: "svg",
      tooltip: { disableDefaultStyle: true, theme: "page" },
    };
    try {
      await drawChart(place, spec, options);
      place.dataset.drawn = "yes";
    } catch (error) {
      place.dataset.drawn = "no";
      place.textContent = "This chart could not be drawn; its numbers are in the table below.";
      console.error(error);
    }
  }
  document.documentElement.dataset.drawn = "all";
})();
