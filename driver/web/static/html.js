// The template function of all views. Values in a template become text or attributes, never markup.
import { Component, h, render } from "./vendor/preact.mjs";
import htm from "./vendor/htm.mjs";

export const html = htm.bind(h);
export { Component, render };
