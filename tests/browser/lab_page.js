// What the tests ask of JupyterLab's page, of the notebook that is in front.
window.labPage = (() => {
  const panel = () => document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden)');
  const all = selector => [...(panel()?.querySelectorAll(selector) ?? [])];
  const prompts = () => all('.jp-CodeCell .jp-InputPrompt').map(prompt => prompt.textContent.trim());
  const frames = new Set();

  // Frames of a progress bar replace each other: they are collected here, as they come.
  function collectFrames(frame) {
    const moving = new RegExp(frame, 'g');
    const look = change => {
      const place = change.target.nodeType === Node.ELEMENT_NODE ? change.target : change.target.parentElement;
      const text = place?.closest('.jp-OutputArea')?.textContent ?? '';
      (text.match(moving) ?? []).forEach(found => frames.add(found));
    };
    new MutationObserver(changes => changes.forEach(look)).observe(
      panel(), {subtree: true, childList: true, characterData: true});
  }

  return {
    collectFrames,
    frames: () => [...frames],
    isOpen: cells =>
      all('.jp-Cell').length === cells &&
      /Python 3[^|]*\| Idle/.test(document.querySelector('#jp-bottom-panel')?.textContent),
    isClear: () => prompts().every(prompt => prompt === '[ ]:') && !all('.jp-OutputArea-output').length,
    hasCount: cell => /\[\d+\]/.test(all('.jp-Notebook .jp-Cell')[cell]?.querySelector('.jp-InputPrompt')?.textContent),
    hasMoved: () => frames.size > 2,
    isSaved: () => !document.querySelector('.lm-TabBar-tab.jp-mod-current.jp-mod-dirty'),
    // Run All marks every cell at once. None is marked any more when all have run, or when one has failed.
    hasEnded: () => !prompts().includes('[*]:') && prompts().some(prompt => /\[\d+\]/.test(prompt)),
    areLoaded: figures => {
      const images = all('.jp-OutputArea-output img');
      return images.length >= figures && images.every(image => image.complete);
    },
    read: () => all('.jp-Notebook .jp-Cell').map(cell => ({
      kind: cell.classList.contains('jp-CodeCell') ? 'code' : 'markdown',
      prompt: cell.querySelector('.jp-InputPrompt')?.textContent.trim() ?? '',
      outputs: [...cell.querySelectorAll('.jp-OutputArea-output')].map(
        output => [output.dataset.mimeType ?? '', output.textContent]),
      images: [...cell.querySelectorAll('.jp-OutputArea-output img')].map(
        ({alt, complete, naturalWidth, naturalHeight}) => ({alt, complete, width: naturalWidth, height: naturalHeight})),
      too_wide: [...cell.querySelectorAll('table, img, mjx-container > *')]
        .filter(part => part.getBoundingClientRect().right > cell.getBoundingClientRect().right + 1)
        .map(part => part.tagName.toLowerCase()),
      bad_formulas: [...new Set([...cell.querySelectorAll('[data-mjx-error]')].map(part => part.dataset.mjxError))],
    })),
    dialogs: () => [...document.querySelectorAll('.jp-Dialog')].map(dialog => dialog.textContent),
    showBar: frame => {
      const bars = all('.jp-OutputArea-output').filter(output => new RegExp(frame).test(output.textContent));
      bars.at(-1)?.scrollIntoView({block: 'center'});
    },
    scrollTo: top => {
      const panel = all('.jp-WindowedPanel-outer')[0];
      panel.scrollTop = top;
      return panel.scrollTop + panel.clientHeight < panel.scrollHeight - 1 ? panel.scrollTop + panel.clientHeight : null;
    },
  };
})();
