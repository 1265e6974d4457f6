// Shows the OpenAPI document of the driver that served this page. The token is the one that the page at / keeps for this tab.

const TOKEN = "forebay.token";
const DOCUMENT = "/v1/openapi.json";
const login = document.getElementById("login");
const message = document.getElementById("message");

const headers = () => {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { authorization: `Bearer ${token}` } : {};
};

function withToken(request) {
  Object.assign(request.headers, headers());
  return request;
}

async function show() {
  message.textContent = "";
  let response;
  try {
    response = await fetch(DOCUMENT, { cache: "no-store", credentials: "omit", redirect: "error", headers: headers() });
  } catch {
    message.textContent = "The driver does not answer. Reload this page when it runs.";
    return;
  }
  if (response.status === 401) {
    login.hidden = false;
    message.textContent = sessionStorage.getItem(TOKEN) ? "The driver does not know this token." : "";
    document.getElementById("token").focus();
    return;
  }
  if (!response.ok) {
    message.textContent = `The driver answered with status ${response.status}.`;
    return;
  }
  login.hidden = true;
  SwaggerUIBundle({
    spec: await response.json(),
    dom_id: "#docs",
    deepLinking: true,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    validatorUrl: null, // it is on another host
    supportedSubmitMethods: ["get"], // an action needs the confirmation that the page or the command asks for
    requestInterceptor: withToken,
  });
}

login.addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.getElementById("token");
  sessionStorage.setItem(TOKEN, field.value.trim());
  field.value = "";
  show();
});

show();
