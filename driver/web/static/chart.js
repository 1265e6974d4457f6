// One chart of the driver's series, drawn by uPlot, with a legend that shows the values under the pointer or the newest ones.
import { plain, utc } from "./format.js";
import { Component, html } from "./html.js";

const HEIGHT = 150;
const SYNC = "forebay";

/** `title`; `lines`: name in the series, label, color (a CSS variable); `format(value)`; `series`: the answer of /v1/series. */
export class Chart extends Component {
  box = { current: null };

  componentDidMount() {
    this.redraw = () => this.draw();
    this.themes = window.matchMedia("(prefers-color-scheme: dark)");
    this.themes.addEventListener("change", this.redraw);
    window.addEventListener("theme", this.redraw);
    this.sizes = new ResizeObserver(() => this.plot?.setSize({ width: this.box.current.clientWidth, height: HEIGHT }));
    this.sizes.observe(this.box.current);
    this.draw();
  }

  componentWillUnmount() {
    this.themes.removeEventListener("change", this.redraw);
    window.removeEventListener("theme", this.redraw);
    this.sizes.disconnect();
    this.plot?.destroy();
  }

  componentDidUpdate(before) {
    if (before.series !== this.props.series) this.plot?.setData(this.data());
  }

  data() {
    const { series, lines } = this.props;
    return [series.times_ms.map((ms) => ms / 1000), ...lines.map(({ name }) => series.values[name] ?? series.times_ms.map(() => null))];
  }

  /** Return the colour that a CSS variable has in the present theme. */
  color(name) {
    const { style } = this.box.current;
    style.color = `var(${name})`;
    const resolved = getComputedStyle(this.box.current).color;
    style.color = "";
    return resolved;
  }

  draw() {
    const { lines, format } = this.props;
    const color = (name) => this.color(name);
    this.plot?.destroy();
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
    this.plot = new window.uPlot(
      {
        width: this.box.current.clientWidth || 300,
        height: HEIGHT,
        legend: { show: false },
        padding: [10, 12, 0, 0],
        cursor: { sync: { key: SYNC }, drag: { x: false, y: false } },
        tzDate: (seconds) => window.uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
        scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 0, 1e-9) * 1.1] } },
        axes: [
          { ...axis, size: 26, space: 80, values: [[3600, "{HH}:{mm}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
          { ...axis, size: 62, values: (_, values) => values.map((value) => format(value)) },
        ],
        series: [{}, ...lines.map(({ label, color: name }) => ({ label, stroke: color(name), width: 1.5, points: { show: false } }))],
        hooks: { setCursor: [(plot) => this.setState({ at: plot.cursor.idx ?? null })] },
      },
      this.data(),
      this.box.current,
    );
  }

  render({ title, lines, series, format }, { at = null }) {
    const last = series.times_ms.length - 1;
    const place = at !== null && at <= last ? at : last;
    const value = ({ name }) => format(series.values[name]?.[place] ?? null);
    const values = lines.map((line) => `${line.label} ${value(line)}`).join(", ");
    return html`
      <figure class="chart">
        <figcaption>
          <span class="title">${title}</span>
          ${lines.map((line) => html`<span class="key"><i class=${`swatch ${line.color.slice(2)}`}></i>${line.label} <b>${value(line)}</b></span>`)}
          <span class="muted at">${at !== null && place >= 0 ? utc(series.times_ms[place]) : ""}</span>
        </figcaption>
        <div role="img" aria-label=${plain(`${title}: ${values}`)} ref=${this.box}></div>
      </figure>
    `;
  }
}
