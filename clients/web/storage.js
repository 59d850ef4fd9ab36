// What the browser keeps of this page, for this machine.

export const stored = (name, otherwise = "") => localStorage.getItem(`streamd.${name}`) ?? otherwise;
export const store = (name, value) => localStorage.setItem(`streamd.${name}`, value);
