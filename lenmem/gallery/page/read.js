// Unpacks the data of networks, quantised arrays compressed in base64 (lenmem/gallery/pack.py), to Float32Array.
"use strict";
window.gallery = { networks: new Map(), about: [] };

gallery.list = (about) => { gallery.about = about; gallery.start(); };

gallery.add = (about, moments) => {
  gallery.networks.set(about.slug, { about, moments });
  const waiting = gallery.waiting.get(about.slug);
  if (waiting) waiting.done();
};

// The data file of a network is a script, since a page without a server may load scripts but not fetch files.
gallery.waiting = new Map();
gallery.load = (slug) => {
  if (gallery.networks.has(slug)) return Promise.resolve(gallery.networks.get(slug));
  if (!gallery.waiting.has(slug)) {
    const wait = {};
    wait.promise = new Promise((resolve, reject) => {
      wait.done = () => resolve(gallery.networks.get(slug));
      const script = document.createElement("script");
      script.src = `networks/${slug}.js`;
      script.onerror = () => reject(new Error(`networks/${slug}.js is missing`));
      document.head.append(script);
    });
    gallery.waiting.set(slug, wait);
  }
  return gallery.waiting.get(slug).promise;
};

// The views of a moment with unpacked arrays, view.a.name = {shape, values}. Unpacked once and cached.
gallery.unpack = async (moment) => {
  if (moment.ready) return moment;
  const bytes = Uint8Array.from(atob(moment.data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = new DataView(await new Response(stream).arrayBuffer());
  for (const view of moment.views) {
    view.a = {};
    for (const [name, reference] of Object.entries(view.arrays)) {
      const count = reference.shape.reduce((product, size) => product * size, 1);
      const values = new Float32Array(count);
      const scale = (reference.high - reference.low) / (reference.bytes === 2 ? 65535 : 255);
      for (let n = 0; n < count; n++) {
        const code = reference.bytes === 2 ? data.getUint16(reference.at + 2 * n, true) : data.getUint8(reference.at + n);
        values[n] = reference.low + code * scale;
      }
      view.a[name] = { shape: reference.shape, values, low: reference.low, high: reference.high };
    }
  }
  moment.ready = true;
  return moment;
};
