// A state timeline: Grafana's own is not exported, so its few lines are drawn on Grafana's chart.
import type { DataFrame, GrafanaTheme2 } from "@grafana/data";
import { UPlotChart, UPlotConfigBuilder, VizLegend } from "@grafana/ui";
import { AxisPlacement, LegendDisplayMode, ScaleDirection, ScaleOrientation } from "@grafana/schema";

interface Props { panel: any; frames: DataFrame[]; width: number; height: number; from: number; to: number; theme: GrafanaTheme2 }
interface Stretch { from: number; to: number; color: string; text: string }

function stretches(frame: DataFrame, end: number): Stretch[] {
  const [time, field] = frame.fields;
  const found: Stretch[] = [];
  time.values.forEach((at: number, index: number) => {
    const value = field.values[index];
    if (value === null) return;
    const { text, color } = field.display!(value);
    const until = Math.min(time.values[index + 1] ?? end, at + 5_000 > end ? end : (time.values[index + 1] ?? at));
    const last = found[found.length - 1];
    if (last && last.text === text && last.to === at) last.to = until;
    else found.push({ from: at, to: until, color: color!, text });
  });
  return found;
}

export function Timeline({ panel, frames, width, height, from, to, theme }: Props) {
  const rows = frames.map((frame) => ({ name: frame.fields[1].config.displayName!, parts: stretches(frame, to * 1000) }));
  const items = new Map(rows.flatMap((row) => row.parts.map((one) => [one.text, one.color] as const)));
  const shown = panel.options.legend.showLegend;
  const chart = height - (shown ? 34 : 0);
  const builder = new UPlotConfigBuilder("browser");
  builder.setPrepData(([frame]: any) => frame.fields.map((one: any) => one.values));
  builder.addScale({ scaleKey: "x", isTime: true, orientation: ScaleOrientation.Horizontal, direction: ScaleDirection.Right, range: () => [from * 1000, to * 1000] });
  builder.addScale({ scaleKey: "y", isTime: false, orientation: ScaleOrientation.Vertical, direction: ScaleDirection.Up, range: () => [0, rows.length] });
  builder.addAxis({ scaleKey: "x", isTime: true, placement: AxisPlacement.Bottom, theme, timeZone: "browser" });
  const longest = Math.max(...rows.map((row) => row.name.length));
  builder.addAxis({
    scaleKey: "y", isTime: false, placement: AxisPlacement.Left, theme, grid: { show: false }, size: Math.max(60, longest * 8 + 16),
    splits: () => rows.map((_, at) => rows.length - at - 0.5), values: (_: any, at: number[]) => at.map((_, index) => rows[index].name),
  } as any);
  builder.addSeries({ scaleKey: "y", theme, pathBuilder: () => null, pointsBuilder: () => false } as any);
  builder.addHook("draw", (u: any) => {
    rows.forEach((row, at) => {
      const [top, bottom] = [at + 1 - panel.options.rowHeight, at + panel.options.rowHeight].map((y) => u.valToPos(rows.length - y, "y", true));
      for (const one of row.parts) {
        const [left, right] = [one.from, one.to].map((x) => u.valToPos(x, "x", true));
        u.ctx.fillStyle = one.color;
        u.ctx.globalAlpha = panel.fieldConfig.defaults.custom.fillOpacity / 100;
        u.ctx.fillRect(left, top, Math.max(1, right - left), bottom - top);
        u.ctx.globalAlpha = 1;
      }
    });
  });
  const data: any = [[from * 1000, to * 1000], [0, 0]];
  return (
    <div>
      <UPlotChart data={data} width={width} height={chart} config={builder} />
      {shown && (
        <VizLegend
          placement="bottom"
          displayMode={LegendDisplayMode.List}
          items={[...items].map(([label, color]) => ({ label, color, yAxis: 1 }))}
        />
      )}
    </div>
  );
}
