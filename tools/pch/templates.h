// What the standard library's templates make of these types is compiled once (templates.cpp), and not in each file that sees a
// precompiled header: a tenth of the time of compiling tests and programs.
#ifndef HALIAX_EXTERN
#define HALIAX_EXTERN extern
#endif
HALIAX_EXTERN template class std::basic_string<char>;
HALIAX_EXTERN template class std::vector<int>;
HALIAX_EXTERN template class std::vector<long>;
HALIAX_EXTERN template class std::vector<float>;
HALIAX_EXTERN template class std::vector<double>;
HALIAX_EXTERN template class std::vector<bool>;
HALIAX_EXTERN template class std::vector<std::string>;
HALIAX_EXTERN template class std::vector<std::pair<std::string, int>>;
HALIAX_EXTERN template class std::vector<std::pair<std::string, double>>;
HALIAX_EXTERN template class std::vector<haliax::NamedArray>;
HALIAX_EXTERN template class std::vector<haliax::Axis>;
HALIAX_EXTERN template class std::vector<haliax::Name>;
HALIAX_EXTERN template class std::vector<std::optional<haliax::Mapping>>;
HALIAX_EXTERN template class std::optional<haliax::Mapping>;
HALIAX_EXTERN template class std::optional<haliax::Mesh>;
HALIAX_EXTERN template class std::optional<haliax::Mappings>;
HALIAX_EXTERN template class std::optional<haliax::NamedArray>;
