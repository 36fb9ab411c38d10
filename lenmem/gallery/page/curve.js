// Charts of accuracy by length: a small one for the cards (SVG), and one with all seeds (uPlot).
"use strict";

gallery.best = (about) => (about.curve.exact_match || about.curve.token_accuracy || [[]])[about.seed] || [];

gallery.spark = (about) => {
  const { lengths } = about.curve, best = gallery.best(about), [low, high] = [lengths[0], lengths[lengths.length - 1]];
  const x = (n) => (high > low ? (196 * Math.log(n / low)) / Math.log(high / low) : 98) + 2, y = (v) => 31 - 28 * v;
  const band = [Math.max(2, x(Math.max(about.train[0], low))), x(Math.min(about.train[1], high))];
  const points = lengths.map((n, k) => `${x(n).toFixed(1)},${y(best[k] || 0).toFixed(1)}`).join(" ");
  return `<svg viewBox="0 0 200 34" preserveAspectRatio="none" role="img" aria-label="Exact match by length: at least 95% up to ${about.reach}">
<rect x="${band[0]}" y="0" width="${Math.max(1, band[1] - band[0])}" height="34" fill="var(--band)"/>
<polyline points="${points}" fill="none" stroke="var(--read)" stroke-width="2" vector-effect="non-scaling-stroke"/></svg>`;
};

// A chart of all seeds in `box`: `lengths` can be shown, `chosen()` is shown, and `choose(n)` shows another length.
gallery.curve = (box, about, lengths, chosen, choose) => {
  const style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(`--${name}`).trim();
  const exact = about.curve.exact_match || [], token = about.curve.token_accuracy || [];
  const seeds = (exact.length ? exact : token).map((row, seed) => ({ row, seed })).sort((a, b) => (a.seed === about.seed) - (b.seed === about.seed));
  const mean = exact.length && token.length ? [token[about.seed]] : [];
  const axis = { stroke: color("soft"), grid: { stroke: color("faint"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif", size: 30 };
  const far = about.curve.lengths[about.curve.lengths.length - 1] > 6 * about.train[1];
  const chart = new uPlot({
    width: box.clientWidth, height: 178, legend: { show: false }, padding: [8, 12, 0, 0],
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
    scales: { x: { time: false, distr: far ? 3 : 1, log: 2 }, y: { range: [-0.03, 1.03] } },
    axes: [{ ...axis, label: `length (${about.unit || "symbols"})`, labelSize: 16, labelFont: "12px system-ui, sans-serif", values: (_, ticks) => ticks.map((n) => (n === null ? "" : `${n}`)) },
      { ...axis, size: 42, values: (_, ticks) => ticks.map((v) => `${Math.round(100 * v)}%`) }],
    series: [{}, ...mean.map(() => ({ stroke: color("soft"), width: 1, dash: [3, 3], points: { show: false } })),
      ...seeds.map(({ seed }) => ({ stroke: color("read"), alpha: seed === about.seed ? 1 : 0.35, width: seed === about.seed ? 2.4 : 1.2, points: { show: seed === about.seed, size: 4, fill: color("read") } }))],
    hooks: {
      drawClear: [(u) => {
        const [a, b] = about.train.map((n) => u.valToPos(n, "x", true)), { ctx, bbox } = u;
        const left = clamp(a, bbox.left, bbox.left + bbox.width);
        const wide = Math.max(2, clamp(b, bbox.left, bbox.left + bbox.width) - left), ratio = window.devicePixelRatio || 1;
        ctx.fillStyle = color("band"); ctx.fillRect(left, bbox.top, wide, bbox.height);
        if (wide > 62 * ratio) { ctx.font = `${11 * ratio}px system-ui, sans-serif`; ctx.fillStyle = color("soft"); ctx.textAlign = "left"; ctx.textBaseline = "bottom"; ctx.fillText("training", left + 6 * ratio, bbox.top + bbox.height - 5 * ratio); }
      }],
      draw: [(u) => {
        const at = u.valToPos(chosen(), "x", true), { ctx, bbox } = u;
        if (at < bbox.left || at > bbox.left + bbox.width) return;
        ctx.strokeStyle = color("ink"); ctx.lineWidth = window.devicePixelRatio || 1; ctx.beginPath(); ctx.moveTo(at, bbox.top); ctx.lineTo(at, bbox.top + bbox.height); ctx.stroke();
      }],
    },
  }, [about.curve.lengths, ...mean, ...seeds.map(({ row }) => row)], box);
  chart.over.addEventListener("click", () => {
    const wanted = chart.posToVal(chart.cursor.left, "x");
    choose(lengths.reduce((best, n, k) => (Math.abs(Math.log(n / wanted)) < Math.abs(Math.log(lengths[best] / wanted)) ? k : best), 0));
  });
  const shown = about.curve.lengths.map((n, k) => `${n}: ${percent(gallery.best(about)[k] || 0)}`).join(", ");
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `Exact match ${about.seeds > 1 ? `of the best of ${about.seeds} seeds` : "of one seed"} by length: ${shown}`);
  return chart;
};
