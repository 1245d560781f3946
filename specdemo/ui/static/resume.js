// @ts-check
// Gradio sends a page's messages as one stream for as long as an event goes on, and takes a stream that is cut
// for a lost server: it reloads the page. Proxies cut streams, and laptops sleep. So the stream is asked for
// again from the place where it was cut, and Gradio notices nothing. specdemo/ui/resume.py answers.
//
// A script of its own in the page's head, because it must be there before Gradio opens a stream.
{
  const STREAM = "/gradio_api/queue/data";
  const END = '"msg":"close_stream"';
  const PAUSE = 500; // ms between two attempts
  const ATTEMPTS = 40; // about as long as the server keeps a stream
  const plainFetch = window.fetch.bind(window);

  window.fetch = (input, init) => {
    const address = input instanceof Request ? input.url : String(input);
    const path = new URL(address, location.href).pathname;
    return path.endsWith(STREAM) ? open(new Request(input, init)) : plainFetch(input, init);
  };

  /** @param {Request} request */
  async function open(request) {
    const address = new URL(request.url);
    const leaving = new URL(address);
    leaving.pathname = leaving.pathname.replace(STREAM, "/specdemo/leave");
    const leave = () => navigator.sendBeacon(leaving);
    const { signal, headers, credentials } = request;
    const ask = (/** @type {number} */ from) => {
      address.searchParams.set("from", String(from));
      return plainFetch(address, { signal, headers, credentials });
    };

    const first = await ask(0);
    if (!first.ok || !first.body) return first;
    addEventListener("pagehide", leave);
    signal.addEventListener("abort", leave);
    let reader = first.body.getReader();
    let received = 0; // bytes
    let tail = ""; // the last characters that came

    /** @returns {Promise<Uint8Array | null>} null at the end of the stream */
    async function next() {
      for (;;) {
        try {
          const { done, value } = await reader.read();
          if (value) return value;
          if (done && tail.includes(END)) return null;
        } catch (error) {
          if (signal.aborted) throw error;
        }
        if (!(await reopened())) return null;
      }
    }

    /** Whether the stream goes on; false if it has ended. Throws if the server has it no more. */
    async function reopened() {
      for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (attempt) await new Promise((wake) => setTimeout(wake, PAUSE));
        const again = await ask(received).catch(() => null);
        signal.throwIfAborted();
        if (again?.status === 204) return false;
        if (again?.ok && again.body) {
          reader = again.body.getReader();
          return true;
        }
        if (again && again.status < 500) break;
      }
      throw new TypeError("The connection to the server was lost.");
    }

    function close() {
      removeEventListener("pagehide", leave);
      signal.removeEventListener("abort", leave);
    }

    const body = new ReadableStream({
      async pull(stream) {
        try {
          const bytes = await next();
          if (bytes === null) {
            close();
            return stream.close();
          }
          received += bytes.length;
          tail = (tail + new TextDecoder().decode(bytes)).slice(-200);
          stream.enqueue(bytes);
        } catch (error) {
          close();
          stream.error(error);
        }
      },
      async cancel(reason) {
        close();
        leave();
        await reader.cancel(reason);
      },
    });
    return new Response(body, { status: first.status, headers: first.headers });
  }
}
