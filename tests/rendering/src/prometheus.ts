// Asks Prometheus what a panel asks, and makes the frames that Grafana's Prometheus data source would make of the answers.
import { createDataFrame, type DataFrame, FieldType } from "@grafana/data";

export interface Window { address: string; from: number; to: number; values: Record<string, string> }
type Labels = Record<string, string>;
interface Result { metric: Labels; values?: Array<[number, string]>; value?: [number, string] }

export const fill = (text: string, values: Record<string, string>) =>
  text.replace(/\$(\w+)/g, (whole, name) => values[name] ?? whole);

const legend = (format: string, labels: Labels) => format.replace(/{{(\w+)}}/g, (_, name) => labels[name] ?? "");
const numbers = (values: Array<[number, string]>) => values.map(([, text]) => Number(text));

async function ask(window: Window, path: string, parameters: Record<string, string>): Promise<Result[]> {
  const answer = await fetch(`${window.address}/api/v1/${path}`, { method: "POST", body: new URLSearchParams(parameters) });
  const body = await answer.json();
  if (body.status !== "success") throw new Error(body.error);
  return body.data.result;
}

export async function frames(target: any, window: Window): Promise<DataFrame[]> {
  const query = fill(target.expr, window.values);
  if (target.instant) {
    const found = await ask(window, "query", { query, time: `${window.to}` });
    if (target.format === "table") return found.length ? [tableFrame(target.refId, found)] : [];
    return found.map((one) => seriesFrame(target, one.metric, [one.value!]));
  }
  const step = Math.max(1, Math.round((window.to - window.from) / 600));
  const range = { start: `${window.from}`, end: `${window.to}`, step: `${step}` };
  const found = await ask(window, "query_range", { query, ...range });
  return found.map((one) => seriesFrame(target, one.metric, gaps(one.values!, step)));
}

// A missing sample is a gap in the line, as Grafana's data source shows it.
function gaps(values: Array<[number, string]>, step: number): Array<[number, string]> {
  return values.flatMap((one, at) =>
    at && one[0] - values[at - 1][0] > 1.5 * step ? [[one[0] - step, "NaN"] as [number, string], one] : [one],
  );
}

function seriesFrame(target: any, labels: Labels, values: Array<[number, string]>): DataFrame {
  const name = target.legendFormat === "__auto" ? Object.values(labels).join(" ") : legend(target.legendFormat, labels);
  const nullable = numbers(values).map((one) => (Number.isNaN(one) ? null : one));
  return createDataFrame({
    refId: target.refId,
    name,
    fields: [
      { name: "Time", type: FieldType.time, values: values.map(([time]) => time * 1000), config: {} },
      { name, type: FieldType.number, values: nullable, config: { displayName: name } },
    ],
  });
}

function tableFrame(refId: string, found: Result[]): DataFrame {
  const labels = [...new Set(found.flatMap((one) => Object.keys(one.metric)))].filter((one) => one !== "__name__");
  return createDataFrame({
    refId,
    fields: [
      { name: "Time", type: FieldType.time, values: found.map((one) => one.value![0] * 1000) },
      ...labels.map((label) => ({ name: label, type: FieldType.string, values: found.map((one) => one.metric[label]) })),
      { name: "Value", type: FieldType.number, values: found.map((one) => Number(one.value![1])) },
    ],
  });
}
