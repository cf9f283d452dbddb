// Gives fields what the dashboard says about them, and runs its transformations with Grafana's own transformers.
import {
  type DataFrame,
  type Field,
  getDisplayProcessor,
  getFieldDisplayName,
  type GrafanaTheme2,
  standardTransformers,
  standardTransformersRegistry,
  transformDataFrame,
} from "@grafana/data";

const used = [
  standardTransformers.mergeTransformer,
  standardTransformers.organizeFieldsTransformer,
  standardTransformers.filterFieldsByNameTransformer,
  standardTransformers.orderFieldsTransformer,
  standardTransformers.renameFieldsTransformer,
  standardTransformers.filterFieldsTransformer,
  standardTransformers.noopTransformer,
];
standardTransformersRegistry.setInit(() =>
  used.map((one: any) => ({ id: one.id, name: one.name, transformation: async () => one, editor: () => null, imageDark: "", imageLight: "" })),
);

// With several queries Grafana names the columns Value #A, Value #B, …; with one it is Value.
export async function transformed(panel: any, frames: DataFrame[]): Promise<DataFrame[]> {
  if (!panel.transformations) return frames;
  if (panel.targets.length > 1) {
    for (const frame of frames) for (const field of frame.fields) if (field.name === "Value") field.name = `Value #${frame.refId}`;
  }
  return new Promise((done) => transformDataFrame(panel.transformations, frames).subscribe(done));
}

function put(config: any, path: string, value: unknown) {
  const keys = path.split(".");
  const last = keys.pop()!;
  let at = config;
  for (const key of keys) at = at[key] ??= {};
  at[last] = value;
}

export function configured(panel: any, frames: DataFrame[], theme: GrafanaTheme2): DataFrame[] {
  let series = 0;
  for (const frame of frames) {
    for (const field of frame.fields) {
      if (field.type === "time" && panel.type !== "table") continue;
      const name = getFieldDisplayName(field, frame, frames);
      const config = { ...structuredClone(panel.fieldConfig.defaults), ...(panel.type === "table" ? {} : { displayName: name }) };
      config.custom ??= {};
      config.thresholds.steps = config.thresholds.steps.map((one: any) => ({ ...one, value: one.value ?? -Infinity }));
      for (const one of panel.fieldConfig.overrides) {
        if (one.matcher.options === name) for (const { id, value } of one.properties) put(config, id, structuredClone(value));
      }
      for (const one of config.thresholds.steps) one.value ??= -Infinity;
      config.color ??= { mode: "thresholds" };
      field.config = config;
      field.state = { ...field.state, displayName: name, seriesIndex: series++ };
      field.display = getDisplayProcessor({ field: field as Field, theme, timeZone: "browser" });
      const links = config.links ?? [];
      field.getLinks = () => links.map((one: any) => ({ href: one.url, title: one.title, target: "_self", origin: field }));
    }
  }
  return frames;
}
