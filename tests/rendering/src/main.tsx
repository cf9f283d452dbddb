// Draws one dashboard from its rendered JSON with what a Prometheus says, and reports what could be seen to be wrong with the picture.
// Address: ?dashboard=NAME&prometheus=URL&from=S&to=S&run=…
import { createTheme, type DataFrame, EventBusSrv, setTimeZoneResolver, ThemeContext } from "@grafana/data";
import { GlobalStyles, PanelChrome, PanelContextProvider } from "@grafana/ui";
import { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { configured, transformed } from "./fields";
import { frames, type Window } from "./prometheus";
import { type Note, Visual } from "./visuals";

const WIDTH = 1600;
const CELL = 30;
const GAP = 8;
const address = new URLSearchParams(location.search);
const theme = createTheme({ colors: { mode: (address.get("theme") ?? "dark") as any } });
const complaints: string[] = [];
const own = console.error;
console.error = (...words: unknown[]) => { complaints.push(words.map(String).join(" ").slice(0, 400)); own(...words); };
addEventListener("error", (event) => complaints.push(String(event.message)));
addEventListener("unhandledrejection", (event) => complaints.push(String(event.reason)));
setTimeZoneResolver(() => "browser");

const [from, to] = [Number(address.get("from")), Number(address.get("to"))];
const window_: Window = {
  address: address.get("prometheus")!, from, to,
  values: { run: address.get("run")!, runs: ".*", pod: ".*", __range: `${Math.round(to - from)}s`, __rate_interval: address.get("rate")! },
};

// Samples in a row are one stretch, as Grafana takes them.
async function noted(annotation: any): Promise<Note[]> {
  const found: Note[] = [];
  for (const frame of await frames({ ...annotation, legendFormat: "x" }, window_)) {
    frame.fields[0].values.forEach((at: number, index: number) => {
      if (frame.fields[1].values[index] === null) return;
      const last = found[found.length - 1];
      if (last && at - last.to < 1500) last.to = at;
      else found.push({ color: annotation.iconColor, from: at, to: at });
    });
  }
  return annotation.name === "Recoveries" ? found.map((one) => ({ ...one, to: one.from })) : found;
}

function Panel({ panel, notes }: { panel: any; notes: Note[] }) {
  const [data, setData] = useState<DataFrame[]>();
  const [error, setError] = useState<string>();
  useEffect(() => {
    Promise.all(panel.targets.map((one: any) => frames(one, window_)))
      .then((found) => transformed(panel, found.flat()))
      .then((found) => setData(configured(panel, found, theme)))
      .catch((reason) => { complaints.push(`${panel.title}: ${reason}`); setError(String(reason)); });
  }, [panel]);
  const at = panel.gridPos;
  const width = (at.w * WIDTH) / 24 - GAP;
  const height = at.h * (CELL + GAP) - GAP;
  return (
    <PanelChrome title={panel.title} description={panel.description} width={width} height={height} statusMessage={error}>
      {(w, h) => data && <Visual panel={panel} frames={data} width={w} height={h} from={from} to={to} theme={theme} notes={notes} />}
    </PanelChrome>
  );
}

function Dashboard({ document, notes }: { document: any; notes: Note[] }) {
  const every = document.panels.flatMap((one: any) => [one, ...(one.panels ?? [])]); // rows are drawn open
  const bottom = Math.max(...every.map((one: any) => one.gridPos.y + one.gridPos.h));
  return (
    <div style={{ position: "relative", width: WIDTH, height: bottom * (CELL + GAP) }}>
      {every.map((panel: any) => {
        const { x, y, w } = panel.gridPos;
        const place = { position: "absolute" as const, left: (x * WIDTH) / 24 + GAP / 2, top: y * (CELL + GAP) + GAP / 2, width: (w * WIDTH) / 24 - GAP };
        return (
          <div key={panel.id} data-panel={panel.title} style={place}>
            {panel.type === "row" ? <h4 style={{ margin: "4px 8px" }}>{panel.title}</h4> : <Panel panel={panel} notes={notes} />}
          </div>
        );
      })}
    </div>
  );
}

function measure() {
  const panels = [...document.querySelectorAll<HTMLElement>("[data-panel]")].map((panel) => {
    const inside = [...panel.querySelectorAll<HTMLElement>("*")];
    const cut = inside
      .filter((one) => one.children.length === 0 && one.textContent && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflow !== "visible")
      .map((one) => one.textContent!);
    const title = panel.querySelector<HTMLElement>("h2, h4");
    const canvas = [...panel.querySelectorAll("canvas")];
    return { title: panel.dataset.panel, shown: title?.textContent ?? "", cut, text: panel.innerText, canvases: canvas.length,
             painted: canvas.length === 0 || canvas.some(painted) };
  });
  return { panels, complaints, height: document.documentElement.scrollHeight };
}

const wait = (milliseconds: number) => new Promise((done) => setTimeout(done, milliseconds));

// On a busy machine the last panels come late. A row is nothing but its title.
const drawn = () =>
  [...document.querySelectorAll<HTMLElement>("[data-panel]")].every(
    (one) => one.querySelector("canvas, h4") || one.innerText.length > one.dataset.panel!.length,
  );

// Whether anything is on it but axes: at least some pixels that are neither transparent nor grey.
function painted(canvas: HTMLCanvasElement) {
  const { data } = canvas.getContext("2d")!.getImageData(0, 0, canvas.width, canvas.height);
  let coloured = 0;
  for (let at = 0; at < data.length; at += 4) {
    const [r, g, b, a] = data.slice(at, at + 4);
    if (a > 60 && Math.max(r, g, b) - Math.min(r, g, b) > 40) coloured += 1;
  }
  return coloured > 100;
}

async function main() {
  const document_ = await (await fetch(`/dashboards/${address.get("dashboard")}.json`)).json();
  const notes = (await Promise.all(document_.annotations.list.map(noted))).flat();
  createRoot(document.getElementById("root")!).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <style>{`body { margin: 0; background: ${theme.colors.background.canvas} } .empty { display: grid; place-items: center; height: 100%; color: ${theme.colors.text.secondary} }`}</style>
      <PanelContextProvider value={{ eventsScope: "global", eventBus: new EventBusSrv() } as any}>
        <Dashboard document={document_} notes={notes} />
      </PanelContextProvider>
    </ThemeContext.Provider>,
  );
  await wait(4000);
  for (let left = 12; left && !drawn(); left -= 1) await wait(500);
  await fetch("/measured", { method: "POST", body: JSON.stringify(measure()) });
}

main().catch((reason) => fetch("/measured", { method: "POST", body: JSON.stringify({ panels: [], complaints: [String(reason)], height: 0 }) }));
