// A panel's picture by Grafana's own components.
import { type DataFrame, dateTime, type DisplayValue, type GrafanaTheme2, VizOrientation } from "@grafana/data";
import { BarGauge, BigValue, TimeSeries, VizRepeater } from "@grafana/ui";
import { TableNG as Table } from "@grafana/ui/unstable";
import { Timeline } from "./timeline";

export interface Note { color: string; from: number; to: number }
export interface Drawn { notes: Note[]; panel: any; frames: DataFrame[]; width: number; height: number; from: number; to: number; theme: GrafanaTheme2 }

interface Value { display: DisplayValue; config: any; processor: any }

function values(frames: DataFrame[]): Value[] {
  return frames.map((frame) => {
    const field = frame.fields[1];
    const last = [...field.values].reverse().find((one) => one !== null);
    return { display: { ...field.display!(last ?? null), title: field.config.displayName }, config: field.config, processor: field.display };
  });
}

export function Visual(props: Drawn) {
  const { panel, frames, width, height, theme, from, to } = props;
  const range = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: dateTime(from * 1000), to: dateTime(to * 1000) } };
  const empty = panel.fieldConfig.defaults.noValue ?? "No data";
  if (!frames.length || !frames[0].length) {
    if (panel.type === "stat") return <Big {...props} value={{ text: empty, numeric: NaN, color: theme.colors.text.primary }} share={width} />;
    return <div className="empty">{empty}</div>;
  }
  if (panel.type === "timeseries") {
    return <TimeSeries frames={frames} width={width} height={height} timeRange={range} timeZone="browser" legend={panel.options.legend}>{(builder) => mark(builder, props.notes)}</TimeSeries>;
  }
  if (panel.type === "state-timeline") return <Timeline {...props} />;
  if (panel.type === "table") return <Rows {...props} />;
  const shown = values(frames);
  if (panel.type === "stat") {
    return (
      <div style={{ display: "flex", width, height }}>
        {shown.map((one, at) => <Big key={at} {...props} value={one.display} share={width / shown.length} />)}
      </div>
    );
  }
  return <Bars {...props} shown={shown} />;
}

function Big({ panel, height, theme, value, share }: Drawn & { value: DisplayValue; share: number }) {
  const { colorMode, graphMode, justifyMode, textMode } = panel.options;
  return <BigValue width={share} height={height} theme={theme} value={value} {...{ colorMode, graphMode, justifyMode, textMode }} />;
}

function Bars({ panel, width, height, theme, shown }: Drawn & { shown: Value[] }) {
  const most = panel.fieldConfig.defaults.max ?? Math.max(...shown.map((one) => one.display.numeric), 1e-9);
  const longest = (pick: (one: Value) => string) => shown.map(pick).reduce((a, b) => (b.length > a.length ? b : a), "");
  const factors = { title: longest((one) => one.display.title!), text: longest((one) => one.display.text), suffix: longest((one) => one.display.suffix ?? ""), prefix: "" };
  const { displayMode, showUnfilled, namePlacement, valueMode, minVizHeight, maxVizHeight } = panel.options;
  return (
    <VizRepeater
      width={width} height={height} itemSpacing={8} orientation={VizOrientation.Horizontal} source={shown} renderCounter={0}
      minVizHeight={minVizHeight} maxVizHeight={maxVizHeight} autoGrid={false} getValues={() => shown}
      getAlignmentFactors={() => factors as any}
      renderValue={({ value, width: w, height: h }: any) => (
        <BarGauge
          width={w} height={h} theme={theme} value={value.display} display={value.processor}
          field={{ ...value.config, min: 0, max: most }} orientation={VizOrientation.Horizontal} alignmentFactors={factors as any}
          {...{ displayMode, showUnfilled, namePlacement, valueDisplayMode: valueMode }}
        />
      )}
    />
  );
}

function Rows({ panel, frames, width, height }: Drawn) {
  const fields = frames[0].fields.filter((one) => !one.config.custom?.hidden);
  return <Table data={{ ...frames[0], fields } as any} width={width} height={height} cellHeight={"sm" as any} sortBy={panel.options.sortBy} />;
}

// Annotations as Grafana marks them: a stretch of time, or a moment.
function mark(builder: any, notes: Note[]) {
  builder.addHook("draw", (u: any) => {
    for (const { color, from, to } of notes) {
      const [left, right] = [from, to].map((at) => u.valToPos(at, "x", true));
      u.ctx.fillStyle = color;
      u.ctx.globalAlpha = right - left > 2 ? 0.12 : 0.8;
      u.ctx.fillRect(left, u.bbox.top, Math.max(2, right - left), u.bbox.height);
      u.ctx.globalAlpha = 1;
    }
  });
  return null;
}
