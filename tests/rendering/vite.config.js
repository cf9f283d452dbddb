import { defineConfig } from "vite";

// One bundle; Grafana's components expect a few things of Node to be there.
export default defineConfig({
  base: "./",
  define: { "process.env.NODE_ENV": JSON.stringify("production"), "process.env": "{}", global: "globalThis" },
  build: { chunkSizeWarningLimit: 20000, sourcemap: false },
});
