#include "report/page.h"

#include <string_view>

#include "base/text.h"
#include "report/page_data.h"

namespace mw::report {

extern const std::string_view kPageStyle, kPageScript;  // page/, by mw_embed

std::string to_html(const Page& page) {
  std::vector<std::vector<std::string>> names;
  const std::string packed = packed_base64(page, names);
  // "<" would end the element that holds the JSON; JSON writes it as an escape too.
  const std::string figures = replace_all(figures_json(page, names), "<", "\\u003c");
  const std::string title =
      replace_all(replace_all(printable(page.title), "&", "&amp;"), "<", "&lt;");
  std::string html =
      "<!doctype html>\n<html lang=\"en\" data-theme=\"light\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n<title>";
  html += title;
  html += "</title>\n<style>\n";
  html += kPageStyle;
  html +=
      "</style>\n</head>\n<body>\n<header id=\"head\"></header>\n<main>\n"
      "<section id=\"comparison\"></section>\n<section id=\"timeline\"></section>\n"
      "<section id=\"shares-section\"></section>\n<section id=\"memory\"></section>\n"
      "<section id=\"words\"></section>\n</main>\n"
      "<noscript><p>This report draws itself with its own script; switch scripts "
      "on.</p></noscript>\n"
      "<footer>Simulated by meshwright from the rank programs that would run. One device stands "
      "for "
      "all that share a pipeline rank.</footer>\n<div id=\"tip\" role=\"tooltip\" hidden></div>\n"
      "<script type=\"application/json\" id=\"figures\">";
  html += figures;
  html += "</script>\n<script type=\"text/plain\" id=\"packed\">";
  html += packed;
  html += "</script>\n<script>\n\"use strict\";\n(() => {\n";
  html += kPageScript;
  html += "})();\n</script>\n</body>\n</html>\n";
  return html;
}

}  // namespace mw::report
