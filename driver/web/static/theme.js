// Applies the chosen theme before the first paint. A classic script, because modules run after it.
"use strict";
{
  const chosen = localStorage.getItem("forebay.theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
}
